import base64
import hashlib
import os
import shutil
import stat
import string
import subprocess

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import InputError, UsageError
from edgekit.signing import (
    encode_statement,
    generate_key,
    load_private_key,
    load_public_key,
    sign,
    signature_fault,
)

KIND = "application/vnd.edgekit.test"
ALPHABET = string.ascii_letters + string.digits + "+/"


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "key.pem"
    generate_key(path)
    return path


def test_the_encoding_of_statements():
    # the example of the DSSE v1 protocol text
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert encode_statement("http://example.com/HelloWorld", b"hello world") == expected


@given(st.tuples(st.text(), st.binary()), st.tuples(st.text(), st.binary()))
def test_different_statements_have_different_encodings(one, other):
    assert (one == other) == (encode_statement(*one) == encode_statement(*other))


def test_a_signature_holds(key):
    signature = sign(KIND, b"body", key)
    trusted = load_public_key(key.with_name("key.pem.pub"))
    assert signature_fault(signature, KIND, b"body", None) == ""
    assert signature_fault(signature, KIND, b"body", trusted) == ""
    assert signature.key_id == hashlib.sha256(trusted).hexdigest()
    assert sign(KIND, b"body", key) == signature


def test_a_signature_holds_for_its_statement_only(key):
    signature = sign(KIND, b"body", key)
    assert signature_fault(signature, KIND, b"bodY", None)
    assert signature_fault(signature, KIND + "2", b"body", None)


def test_another_key_is_refused(key, tmp_path):
    generate_key(tmp_path / "other.pem")
    trusted = load_public_key(tmp_path / "other.pem.pub")
    signature = sign(KIND, b"body", key)
    assert "another key" in signature_fault(signature, KIND, b"body", trusted)
    # the attacker's signature under the victim's name
    stolen = msgspec.structs.replace(
        sign(KIND, b"body", tmp_path / "other.pem"), public_key=signature.public_key, key_id=signature.key_id
    )
    assert "does not match" in signature_fault(stolen, KIND, b"body", load_public_key(key.with_name("key.pem.pub")))


@pytest.mark.parametrize("field", ["key_id", "public_key", "value"])
def test_every_changed_character_is_noticed(key, field):
    signature = sign(KIND, b"body", key)
    text = getattr(signature, field)
    for index, char in enumerate(text):
        for other in {chr(ord(char) ^ 1 << bit) for bit in range(7)} | {"A", "B", "=", " ", "\n", ""}:
            if other == char:
                continue
            changed = msgspec.structs.replace(signature, **{field: text[:index] + other + text[index + 1 :]})
            assert signature_fault(changed, KIND, b"body", None), (field, index, other)


def test_base64_has_one_form_only(key):
    signature = sign(KIND, b"body", key)
    raw = base64.b64decode(signature.value)
    same = [c for c in ALPHABET if base64.b64decode(signature.value[:-3] + c + "==") == raw]
    assert len(same) > 1  # so the decoder alone would let a flipped bit pass
    for char in same:
        changed = msgspec.structs.replace(signature, value=signature.value[:-3] + char + "==")
        assert bool(signature_fault(changed, KIND, b"body", None)) == (changed != signature)


def test_keys_are_private_and_never_overwritten(tmp_path):
    assert generate_key(tmp_path / "key.pem") == tmp_path / "key.pem.pub"
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "key.pem.pub").stat().st_mode) & 0o444 == 0o444
    assert len(load_public_key(tmp_path / "key.pem.pub")) == 32
    before = (tmp_path / "key.pem").read_bytes()
    with pytest.raises(UsageError, match="exists"):
        generate_key(tmp_path / "key.pem")
    (tmp_path / "key.pem.pub").unlink()
    with pytest.raises(UsageError, match="exists"):
        generate_key(tmp_path / "key.pem")
    assert (tmp_path / "key.pem").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["key.pem"]


def private_pem(key, password=None):
    protection = pem.BestAvailableEncryption(password) if password else pem.NoEncryption()
    return key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, protection)


def test_unusable_private_keys(tmp_path, key):
    path = tmp_path / "key.pem"
    for content, text in [
        (private_pem(load_private_key(key), b"secret"), "encrypted"),
        (private_pem(rsa.generate_private_key(65537, 2048)), "RSA"),
        (private_pem(ec.generate_private_key(ec.SECP256R1())), "EC"),
        (private_pem(ed448.Ed448PrivateKey.generate()), "Ed448"),
        (key.with_name("key.pem.pub").read_bytes(), "public key"),
        (b"", "not an Ed25519"),
        (os.urandom(100), "not an Ed25519"),
        (key.read_bytes()[:60], "not an Ed25519"),
    ]:
        path.write_bytes(content)
        with pytest.raises(InputError, match=text) as caught:
            sign(KIND, b"", path)
        assert caught.value.remedy
        assert caught.value.where == str(path)
    with pytest.raises(InputError, match="cannot be read"):
        sign(KIND, b"", tmp_path / "missing")


def test_unusable_public_keys(tmp_path, key):
    path = tmp_path / "key.pub"
    rsa_key = rsa.generate_private_key(65537, 2048).public_key()
    for content, text in [
        (rsa_key.public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo), "RSA"),
        (key.read_bytes(), "private key"),
        (private_pem(load_private_key(key), b"secret"), "private key"),
        (b"ssh-ed25519 AAAA", "not an Ed25519"),
    ]:
        path.write_bytes(content)
        with pytest.raises(InputError, match=text) as caught:
            load_public_key(path)
        assert caught.value.remedy


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_keys_and_signatures_are_those_of_openssl(tmp_path):
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", "k"], cwd=tmp_path, check=True)
    subprocess.run(["openssl", "pkey", "-in", "k", "-pubout", "-out", "k.pub"], cwd=tmp_path, check=True)
    signature = sign(KIND, b"body", tmp_path / "k")
    assert signature_fault(signature, KIND, b"body", load_public_key(tmp_path / "k.pub")) == ""
    (tmp_path / "statement").write_bytes(encode_statement(KIND, b"body"))
    (tmp_path / "signature").write_bytes(base64.b64decode(signature.value))
    verify = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "k.pub", "-rawin", "-in", "statement"]
    subprocess.run([*verify, "-sigfile", "signature"], cwd=tmp_path, check=True)
