import contextlib
import hashlib
import io
import os
import random
import signal
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit import ustar
from edgekit.atomic import replacing
from edgekit.bundle import Limits, extract, member, read_bundle, read_member, write_bundle
from edgekit.errors import InputError, IntegrityError, UsageError

LONG = "reference/" + "deep/" * 30 + "a" * 90
TOO_LONG_FOR_USTAR = "model/" + "b" * 200 + ".onnx"
NAMES = ["manifest.json", "model/model.onnx", "model/größe 模型.onnx", LONG, TOO_LONG_FOR_USTAR, "empty"]


def sample(folder: Path, names: list[str] = NAMES) -> tuple[Path, dict[str, bytes]]:
    contents = {name: (name.encode() * 40)[: 37 * index] for index, name in enumerate(names)}
    contents["empty"] = b""
    contents["block"] = b"x" * 512
    path = folder / "a.edgekit"
    write_bundle(path, [member(name, content) for name, content in contents.items()])
    return path, contents


def test_what_was_written_is_read(tmp_path):
    path, contents = sample(tmp_path)
    entries = read_bundle(path, Limits())
    assert [entry.name for entry in entries] == list(contents)
    for entry in entries:
        assert read_member(path, entry, 1 << 20) == contents[entry.name]
        assert entry.sha256 == hashlib.sha256(contents[entry.name]).hexdigest()


def test_members_come_from_files_too(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3_000_000))
    write_bundle(tmp_path / "a", [member("model", source)])
    (entry,) = read_bundle(tmp_path / "a", Limits())
    assert read_member(tmp_path / "a", entry, 1 << 30) == source.read_bytes()


def test_same_members_same_bytes(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first, _ = sample(tmp_path / "one")
    second, _ = sample(tmp_path / "two")
    assert first.read_bytes() == second.read_bytes()


def test_bytes_do_not_change_from_version_to_version(tmp_path):
    path, _ = sample(tmp_path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == "13e534e50ab74a81d4399a15562dce7b7028c17c8327829846fdce7565aa2c84"


def test_python_tarfile_reads_it(tmp_path):
    path, contents = sample(tmp_path)
    with tarfile.open(path) as archive:
        found = {info.name: archive.extractfile(info).read() for info in archive}
        assert found == contents
        assert {(info.mode, info.uid, info.mtime) for info in archive} == {(0o644, 0, 315532800)}


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param(["tar", "xf"], id="gnu"),
        pytest.param(["busybox", "tar", "xf"], id="busybox", marks=pytest.mark.system("busybox")),
    ],
)
def test_tar_extracts_it(tmp_path, tool):
    path, contents = sample(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run([*tool, str(path)], cwd=out, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert {name: (out / name).read_bytes() for name in contents} == contents


@pytest.mark.parametrize("size", [8**11 - 1, 8**11, 10**12])
def test_headers_of_huge_members_are_what_tarfile_understands(size):
    raw = ustar.header("model.onnx.data", size)
    with tarfile.open(fileobj=io.BytesIO(raw + bytes(1024))) as archive:
        info = archive.firstmember
    assert (info.name, info.size) == ("model.onnx.data", size)
    assert ustar.read_header(io.BytesIO(raw)) == ("model.onnx.data", size)


@given(
    parts=st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60), min_size=1),
    size=st.integers(0, 10**13),
)
def test_any_header_is_read_back(parts, size):
    name = "/".join(parts)
    if ustar.name_fault(name, {}):
        return
    assert ustar.read_header(io.BytesIO(ustar.header(name, size))) == (name, size)


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/.", "a/", "a\\b", "c:x", "a\nb", "a\0b", "a.",
     "a ", "\ud800", "n" * 256, "d/" * 600 + "x"],
)  # fmt: skip
def test_unsafe_names_are_neither_written_nor_read(tmp_path, name):
    with pytest.raises(InputError):
        write_bundle(tmp_path / "a", [member(name, b"x")])
    assert list(tmp_path.iterdir()) == []
    if "\0" in name or "\ud800" in name:
        return
    forged = tmp_path / "forged"
    forged.write_bytes(ustar.header(name, 1) + b"x" + bytes(511 + 1024))
    with pytest.raises(IntegrityError):
        read_bundle(forged, Limits())


@pytest.mark.parametrize("names", [("a", "a"), ("a", "A"), ("a", "a/b"), ("a/b", "a"), ("D/x", "d/y"), ("é", "é")])
def test_names_that_clash_on_some_file_system(tmp_path, names):
    with pytest.raises(InputError, match="clashes"):
        write_bundle(tmp_path / "a", [member(name, b"x") for name in names])
    blocks = b"".join(ustar.header(name, 0) for name in names)
    (tmp_path / "forged").write_bytes(blocks + bytes(1024))
    with pytest.raises(IntegrityError, match="clashes"):
        read_bundle(tmp_path / "forged", Limits())


def forged(folder: Path, change, **kwargs) -> Path:
    path = folder / "forged"
    with tarfile.open(path, "w", format=kwargs.pop("format", tarfile.USTAR_FORMAT)) as archive:
        info = tarfile.TarInfo("model")
        info.mtime = 315532800
        change(info)
        archive.addfile(info, io.BytesIO(b"x" * info.size) if info.isreg() else None)
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda info: setattr(info, "type", tarfile.SYMTYPE),
        lambda info: setattr(info, "type", tarfile.LNKTYPE),
        lambda info: setattr(info, "type", tarfile.CHRTYPE),
        lambda info: setattr(info, "type", tarfile.BLKTYPE),
        lambda info: setattr(info, "type", tarfile.FIFOTYPE),
        lambda info: setattr(info, "type", tarfile.DIRTYPE),
        lambda info: setattr(info, "type", tarfile.GNUTYPE_SPARSE),
        lambda info: setattr(info, "mode", 0o4755),
        lambda info: setattr(info, "uname", "root"),
        lambda info: setattr(info, "mtime", 0),
        lambda info: setattr(info, "linkname", "/etc/passwd"),
    ],
)
def test_anything_but_plain_files_is_refused(tmp_path, change):
    with pytest.raises(IntegrityError):
        read_bundle(forged(tmp_path, change), Limits())


def test_pax_bombs_are_refused(tmp_path):
    path = forged(tmp_path, lambda info: info.pax_headers.update(comment="x" * 10_000_000), format=tarfile.PAX_FORMAT)
    with pytest.raises(IntegrityError, match="too long"):
        read_bundle(path, Limits())
    path = forged(tmp_path, lambda info: info.pax_headers.update(comment="x"), format=tarfile.PAX_FORMAT)
    with pytest.raises(IntegrityError):
        read_bundle(path, Limits())


def test_limits(tmp_path):
    path, contents = sample(tmp_path)
    with pytest.raises(InputError, match="members"):
        read_bundle(path, Limits(max_members=len(contents) - 1))
    assert len(read_bundle(path, Limits(max_members=len(contents)))) == len(contents)
    with pytest.raises(InputError, match="bytes"):
        read_bundle(path, Limits(max_bytes=path.stat().st_size - 1))
    entry = read_bundle(path, Limits())[1]
    with pytest.raises(InputError, match="bytes"):
        read_member(path, entry, entry.size - 1)


def test_a_claimed_size_beyond_the_end_allocates_nothing(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(ustar.header("model", 10**15) + bytes(2048))
    with pytest.raises(IntegrityError, match="cut short"):
        read_bundle(path, Limits())


def test_every_byte_outside_of_contents_is_checked(tmp_path):
    path, contents = sample(tmp_path)
    whole = path.read_bytes()
    inside = set()
    for entry in read_bundle(path, Limits()):
        inside.update(range(entry.offset, entry.offset + entry.size))
    damaged = tmp_path / "damaged"
    for offset in sorted(set(range(len(whole))) - inside):
        changed = bytearray(whole)
        changed[offset] ^= 1 << offset % 8
        damaged.write_bytes(changed)
        with contextlib.suppress(IntegrityError):
            # only a name in a pax record has no check sum: it is another name then, which no manifest lists
            assert [entry.name for entry in read_bundle(damaged, Limits())] != list(contents)


@settings(max_examples=200)
@given(data=st.data())
def test_cut_and_extended_archives_are_refused(tmp_path_factory, data):
    path, _ = sample(tmp_path_factory.getbasetemp())
    whole = path.read_bytes()
    damaged = path.with_name("damaged")
    cut = data.draw(st.integers(0, len(whole) - 1))
    damaged.write_bytes(whole[:cut])
    with pytest.raises(IntegrityError):
        read_bundle(damaged, Limits())
    more = data.draw(st.binary(min_size=1, max_size=2000) | st.integers(1, 30).map(lambda n: bytes(512 * n)))
    damaged.write_bytes(whole + more)
    with pytest.raises(IntegrityError):
        read_bundle(damaged, Limits())


@settings(max_examples=300)
@given(content=st.binary(max_size=3000))
def test_random_bytes_never_crash(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "random"
    path.write_bytes(content)
    with pytest.raises(IntegrityError):
        read_bundle(path, Limits())


def test_what_is_not_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "missing"):
        with pytest.raises(InputError) as caught:
            read_bundle(tmp_path / name, Limits())
        assert caught.value.remedy


def test_extract_is_whole_and_plain(tmp_path):
    path, contents = sample(tmp_path)
    entries = read_bundle(path, Limits())
    extract(path, entries, tmp_path / "out")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in contents} == contents
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755
    with pytest.raises(UsageError, match="exists"):
        extract(path, entries, tmp_path / "out")
    with pytest.raises(UsageError):
        extract(path, entries, tmp_path / "missing" / "out")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.edgekit", "out"]


def test_a_change_after_reading_is_found_and_leaves_nothing(tmp_path):
    path, _ = sample(tmp_path)
    entries = read_bundle(path, Limits())
    changed = bytearray(path.read_bytes())
    changed[entries[3].offset] ^= 1
    path.write_bytes(changed)
    with pytest.raises(IntegrityError):
        extract(path, entries, tmp_path / "out")
    with pytest.raises(IntegrityError):
        read_member(path, entries[3], 1 << 20)
    assert [item.name for item in tmp_path.iterdir()] == ["a.edgekit"]


def test_a_source_that_changes_while_it_is_packed(tmp_path):
    source = tmp_path / "model"
    source.write_bytes(b"before")
    packed = member("model", source)
    source.write_bytes(b"after!")
    with pytest.raises(InputError, match="changed"):
        write_bundle(tmp_path / "a.edgekit", [packed])
    assert [item.name for item in tmp_path.iterdir()] == ["model"]


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path, _ = sample(tmp_path)
    before = path.read_bytes()

    def fail():
        with replacing(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["a.edgekit"]


def test_two_writers_of_one_file(tmp_path):
    with replacing(tmp_path / "a") as file:
        file.write(b"one")
        with pytest.raises(UsageError, match="another process"), replacing(tmp_path / "a"):
            pass
    assert (tmp_path / "a").read_bytes() == b"one"


def test_planted_temporary_files_are_not_written_to(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".a.part").symlink_to(victim)
    with pytest.raises(UsageError), replacing(tmp_path / "a"):
        pass
    (tmp_path / ".b.part").hardlink_to(victim)
    with pytest.raises(UsageError), replacing(tmp_path / "b"):
        pass
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("place", ["missing/a", "folder", "file/a"])
def test_places_that_cannot_be_written(tmp_path, place):
    (tmp_path / "folder" / "full").mkdir(parents=True)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught:
        write_bundle(tmp_path / place, [member("x", b"")])
    assert caught.value.where == str(tmp_path / place)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "folder"]


WRITER = """
import sys
from pathlib import Path
from edgekit.bundle import member, write_bundle
folder = Path(sys.argv[1])
for round in range(10**6):
    contents = [member(f"part{i}", bytes([round % 251]) * 200_000) for i in range(4)]
    write_bundle(folder / f"{round % 3}.edgekit", contents)
    if round == 0:
        print("writing", flush=True)
"""


KILLED = """
import os, signal, sys
from pathlib import Path
from edgekit.bundle import Limits, extract, member, read_bundle, write_bundle
left = int(sys.argv[2])
def counted(real):
    def call(*a, **k):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*a, **k)
    return call
os.fsync, os.rename, os.mkdir = counted(os.fsync), counted(os.rename), counted(os.mkdir)
folder = Path(sys.argv[1])
members = [member(f"folder{i}/file", b"x" * 5000) for i in range(3)]
write_bundle(folder / "a.edgekit", members)
extract(folder / "a.edgekit", read_bundle(folder / "a.edgekit", Limits()), folder / "out")
"""


def test_a_kill_before_every_durable_step(tmp_path):
    """Fault injection: killed before its first, second, ... fsync, rename or mkdir, until one run gets through."""
    paths = os.pathsep.join(sys.path)
    seen = set()
    for step in range(1, 60):
        root = tmp_path / str(step)
        root.mkdir()
        argv = [sys.executable, "-c", KILLED, str(root), str(step)]
        done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": paths}, check=False)
        visible = {path.name for path in root.iterdir() if not path.name.startswith(".")}
        seen.add(frozenset(visible))
        if "a.edgekit" in visible:
            assert len(read_bundle(root / "a.edgekit", Limits())) == 3
        if "out" in visible:
            assert {path.stat().st_size for path in (root / "out").glob("*/file")} == {5000}
            assert len(list((root / "out").glob("*/file"))) == 3
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    assert done.returncode == 0
    assert step > 10
    assert seen == {frozenset(), frozenset({"a.edgekit"}), frozenset({"a.edgekit", "out"})}


def test_a_killed_writer_leaves_only_whole_archives(tmp_path):
    chance = random.Random(0)
    paths = os.pathsep.join(sys.path)
    for _ in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
        )
        assert child.stdout.readline() == b"writing\n"
        time.sleep(chance.uniform(0, 0.15))
        child.kill()
        child.wait()
        child.stdout.close()
        for path in tmp_path.iterdir():
            if path.name.startswith("."):
                assert path.name.endswith(".edgekit.part")
            else:
                assert len(read_bundle(path, Limits())) == 4
    for name in "012":
        write_bundle(tmp_path / f"{name}.edgekit", [member("x", b"")])
    assert sorted(item.name for item in tmp_path.iterdir()) == ["0.edgekit", "1.edgekit", "2.edgekit"]
