"""Ed25519 signatures (RFC 8032) over statements, and their keys as PEM files.

What is signed is the pre-authentication encoding of DSSE v1: `DSSEv1`, the lengths and values of a type and
of a body, joined by single spaces. The type keeps a signature made for one purpose from serving another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from edgekit.errors import InputError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_MAX_PEM = 16384


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signature and the key that it can be checked with.

    Attributes:
        algorithm: always `ed25519`.
        key_id: hex sha256 of the raw public key.
        public_key: the raw public key, 32 bytes, in base64.
        value: the signature, 64 bytes, in base64.
    """

    algorithm: Literal["ed25519"]
    key_id: str
    public_key: str
    value: str


def encode_statement(kind: str, body: bytes) -> bytes:
    """Return the bytes that are signed for a body of a kind (a media type)."""
    return b"DSSEv1 %d %b %d %b" % (len(kind.encode()), kind.encode(), len(body), body)


def sign(kind: str, body: bytes, key: Path) -> Signature:
    """Sign a body of a kind with the private key in a PEM file; InputError when it cannot be used."""
    private = load_private_key(key)
    public = raw_key(private.public_key())
    return Signature(
        algorithm="ed25519",
        key_id=hashlib.sha256(public).hexdigest(),
        public_key=base64.b64encode(public).decode(),
        value=base64.b64encode(private.sign(encode_statement(kind, body))).decode(),
    )


def signature_fault(signature: Signature, kind: str, body: bytes, trusted: bytes | None) -> str:
    """Return why a signature does not hold, or nothing.

    Args:
        signature: what to check.
        kind: the media type of the body.
        body: what was signed.
        trusted: the raw public key that must have signed; None takes the key that the signature brings along,
            which shows only that nobody without that key changed the body.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public, value = _decode(signature.public_key, 32), _decode(signature.value, 64)
    if public is None or value is None or signature.key_id != hashlib.sha256(public).hexdigest():
        return "the signature is malformed"
    if trusted is not None and public != trusted:
        return f"it is signed by another key, {signature.key_id[:16]}"
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(value, encode_statement(kind, body))
    except (InvalidSignature, ValueError):
        return "the signature does not match"
    return ""


def generate_key(path: Path) -> Path:
    """Make a key pair: a private key at `path` (PEM, PKCS #8, mode 0600), the public key at `path` + `.pub`.

    Returns:
        The path of the public key.

    Raises:
        UsageError: one of the files exists already (a key is never overwritten) or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    public_path = path.with_name(path.name + ".pub")
    secret = private.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    public = private.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    _write_new(public_path, public, 0o644)
    try:
        _write_new(path, secret, 0o600)
    except UsageError:
        public_path.unlink()
        raise
    return public_path


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Load an Ed25519 private key; InputError when the file holds none that can be used."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    raw = _read_pem(path)
    if b"PUBLIC KEY-----" in raw:
        raise InputError("this is a public key", where=str(path), remedy="Sign with the private key.")
    try:
        key = load_pem_private_key(raw, password=None)
    except TypeError:
        remedy = "Decrypt it to a file that only you can read: openssl pkey -in KEY -out PLAIN"
        raise InputError("the private key is encrypted", where=str(path), remedy=remedy) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unusable(path, "private", str(error)) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _unusable(path, "private", f"it is of the type {type(key).__name__}")
    return key


def load_public_key(path: Path) -> bytes:
    """Load an Ed25519 public key and return its 32 raw bytes; InputError when the file holds none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    raw = _read_pem(path)
    if b"PRIVATE KEY-----" in raw:
        remedy = "Give its public key, and keep this one secret: openssl pkey -in KEY -pubout -out KEY.pub"
        raise InputError("this is a private key", where=str(path), remedy=remedy)
    try:
        key = load_pem_public_key(raw)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unusable(path, "public", str(error)) from None
    if not isinstance(key, Ed25519PublicKey):
        raise _unusable(path, "public", f"it is of the type {type(key).__name__}")
    return raw_key(key)


def raw_key(key: Ed25519PublicKey) -> bytes:
    """Return the 32 raw bytes of a public key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def _decode(text: str, size: int) -> bytes | None:
    """Decode base64 of exactly `size` bytes in its one canonical form; None for anything else."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return found if len(found) == size and base64.b64encode(found).decode() == text else None


def _read_pem(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_PEM)
    except OSError as error:
        remedy = "Give the path of a PEM file that you can read."
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), remedy=remedy) from error


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a small file that must not exist yet; it is removed when writing fails."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as error:
        remedy = "Choose another name: keys are never overwritten."
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path), remedy=remedy) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink()
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path), remedy="Free it.") from error


def _unusable(path: Path, which: str, why: str) -> InputError:
    remedy = "Give an Ed25519 key in PEM form; make one: edgekit keygen FILE"
    return InputError(f"not an Ed25519 {which} key: {why}", where=str(path), remedy=remedy)
