from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from samples import download
from samples.download import Package, fetch, unpack


def archive(kind: str, members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    if kind == "wheel":
        with zipfile.ZipFile(out, "w") as wheel:
            for name, content in members.items():
                wheel.writestr(name, content)
        return out.getvalue()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def package(kind: str, content: bytes, suffix: str) -> Package:
    digest = hashlib.sha256(content).hexdigest()
    return Package(origin=kind, name="thing", version="1.0", file=f"thing-1.0{suffix}", sha256=digest)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(download, "CACHE", folder)
    return folder


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], folder: Path) -> None:
        raise AssertionError(f"{command} in {folder}")

    monkeypatch.setattr(download, "_run", refuse)


@pytest.mark.parametrize(("kind", "suffix"), [("wheel", ".whl"), ("sdist", ".tar.gz")])
@pytest.mark.usefixtures("offline")
def test_what_is_cached_needs_no_network(cache: Path, tmp_path: Path, kind: str, suffix: str) -> None:
    content = archive(kind, {"thing/a.txt": b"a", "thing/b.txt": b"b"})
    wanted = package(kind, content, suffix)
    cache.mkdir()
    (cache / wanted.file).write_bytes(content)
    unpack(wanted, tmp_path / "out", {"thing/b.txt": "deep/c.txt"})
    assert (tmp_path / "out" / "deep" / "c.txt").read_bytes() == b"b"
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == ["c.txt"]


@pytest.mark.usefixtures("offline")
def test_a_damaged_file_is_refused(cache: Path) -> None:
    content = archive("wheel", {"a": b"a"})
    wanted = package("wheel", content, ".whl")
    cache.mkdir()
    (cache / wanted.file).write_bytes(content[:-1])
    with pytest.raises(SystemExit, match=r"delete it and fetch again"):
        fetch(wanted)


def test_a_download_is_checked_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = archive("wheel", {"a": b"a"})
    wanted = package("wheel", content, ".whl")
    served, calls = [b"another file", content], []

    def serve(command: list[str], folder: Path) -> None:
        calls.append(command)
        (folder / "thing-1.0-py3-none-any.whl").write_bytes(served[len(calls) - 1])

    monkeypatch.setattr(download, "_run", serve)
    with pytest.raises(SystemExit, match="sha256"):
        fetch(wanted)
    (cache / wanted.file).unlink()
    assert fetch(wanted).read_bytes() == content
    assert fetch(wanted) == cache / wanted.file
    assert len(calls) == 2


def test_the_clients_are_called_by_package_name(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    wheel, sdist = package("wheel", b"", ".whl"), package("sdist", b"", ".tar.gz")
    end = [":all:", "--require-hashes", "--requirement", "requirement.txt"]
    assert download._command(wheel, tmp_path) == [*pip, "--only-binary", *end]
    assert download._command(sdist, tmp_path) == [*pip, "--no-binary", *end]
    assert (tmp_path / "requirement.txt").read_text() == f"thing==1.0 --hash=sha256:{sdist.sha256}\n"
    assert download._command(package("debian", b"", ".deb"), tmp_path) == ["apt-get", "download", "thing=1.0"]


def test_a_download_that_fails_ends_with_its_own_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such package')"]
    with pytest.raises(SystemExit, match="no such package"):
        download._run(command, tmp_path)
