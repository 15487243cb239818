"""The store: atomic, content-addressed, safe against kills and against each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.artifact import Artifact, canonical_json, digest, sha256_file
from edgekit.errors import EdgekitError, IntegrityError, TargetError
from edgekit.housekeeping import count, prune
from edgekit.store import Store, copy_file, write_atomically


def publish(store: Store, content: bytes = b"weights", kind: str = "onnx") -> Artifact:
    with store.staging() as out:
        (out / "model.onnx").write_bytes(content)
        (out / "sub").mkdir()
        (out / "sub" / "extra.bin").write_bytes(content[::-1])
        return store.publish(out, kind, {"opset": 18}, ())


def test_what_is_published_is_found_again_by_another_process(tmp_path):
    with Store(tmp_path) as store:
        made = publish(store)
    with Store(tmp_path) as store:
        assert store.load(made.id) == made
        assert store.find(made.id[:10]) == made
        assert (store.folder(made.id) / "sub" / "extra.bin").read_bytes() == b"sthgiew"
        assert made.files["model.onnx"] == sha256_file(store.folder(made.id) / "model.onnx")


def test_equal_content_is_stored_once_and_other_content_has_another_id(tmp_path):
    with Store(tmp_path) as store:
        assert publish(store).id == publish(store).id
        assert publish(store, b"other").id != publish(store).id
        assert publish(store, kind="torch").id != publish(store).id
        assert count(store).artifacts == 3


def test_an_unpublished_staging_folder_leaves_nothing(tmp_path):
    with Store(tmp_path) as store:
        with store.staging() as out:
            (out / "model.onnx").write_bytes(b"half")
        assert not list((tmp_path / "artifacts").glob("*/.new-*"))
        assert count(store).artifacts == 0


@pytest.mark.parametrize("name", ["model.onnx", "sub/extra.bin"])
def test_a_changed_size_or_a_missing_file_is_told(tmp_path, name):
    with Store(tmp_path) as store:
        made = publish(store)
        path = store.folder(made.id) / name
        path.chmod(0o644)
        path.write_bytes(b"shorter"[:3])
        with pytest.raises(IntegrityError, match="changed"):
            store.load(made.id)
        path.unlink()
        with pytest.raises(IntegrityError):
            store.load(made.id)


def test_a_manifest_of_another_artifact_is_told(tmp_path):
    with Store(tmp_path) as store:
        one, two = publish(store), publish(store, b"two")
        manifest = store.folder(one.id).parent / "manifest.json"
        manifest.write_bytes((store.folder(two.id).parent / "manifest.json").read_bytes())
        with pytest.raises(IntegrityError, match="another artifact"):
            store.load(one.id)


def test_a_symbolic_link_is_refused(tmp_path):
    with Store(tmp_path) as store, store.staging() as out:
        (out / "model.onnx").symlink_to("/etc/hostname")
        with pytest.raises(EdgekitError, match="symbolic link"):
            store.publish(out, "onnx", {}, ())


def test_a_read_only_root_is_a_target_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(TargetError, match="cannot be written"):
        Store(tmp_path / "file")


def test_prune_removes_what_was_used_longest_ago_and_its_records(tmp_path):
    with Store(tmp_path) as store:
        old, new = publish(store, b"x" * 1000), publish(store, b"y" * 1000)
        store.remember(digest("old"), {"artifact": old.id})
        store.remember(digest("new"), {"artifact": new.id})
        os.utime(store.folder(old.id).parent / "manifest.json", (1, 1))
        removed, freed = prune(store, max_bytes=4000)
        assert removed == 1
        assert freed > 2000
        assert store.load(old.id) is None
        assert store.load(new.id) == new
        assert store.record(digest("old")) is None
        assert store.record(digest("new")) == {"artifact": new.id}
        assert prune(store, max_age=-1)[0] == 1


def test_a_damaged_record_is_a_miss(tmp_path):
    with Store(tmp_path) as store:
        store.remember(digest("k"), {"artifact": "abc"})
        (tmp_path / "records" / digest("k")[:2] / f"{digest('k')}.json").write_bytes(b"{half")
        assert store.record(digest("k")) is None


def test_the_lock_of_a_key_lets_one_through(tmp_path):
    order = []
    with Store(tmp_path) as store, store.lock("key"):

        def second():
            with Store(tmp_path) as other, other.lock("key"):
                order.append("second")

        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]


def test_what_a_killed_writer_left_is_swept_when_nobody_else_is_there(tmp_path):
    with Store(tmp_path) as store, store.staging() as out:
        (out / "model.onnx").write_bytes(b"half")
        with Store(tmp_path):  # somebody else is there: nothing may be swept
            assert (out / "model.onnx").exists()
    left = tmp_path / "artifacts" / "new" / ".new-left"
    left.mkdir(parents=True)
    with Store(tmp_path):
        assert not left.exists()


def test_a_copy_is_not_a_link(tmp_path):
    (tmp_path / "a").write_bytes(b"abc" * 1000)
    copy_file(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert (tmp_path / "b").stat().st_ino != (tmp_path / "a").stat().st_ino


KILLED = textwrap.dedent("""
    import os, signal, sys
    from pathlib import Path
    from edgekit.store import Store
    left = int(sys.argv[2])
    def counted(real):
        def call(*a, **k):
            global left
            result = real(*a, **k)
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return call
    os.fsync, os.rename, os.replace = counted(os.fsync), counted(os.rename), counted(os.replace)
    with Store(Path(sys.argv[1])) as store:
        with store.staging() as out:
            (out / "model.onnx").write_bytes(b"weights" * 1000)
            (out / "model.onnx.data").write_bytes(b"more" * 1000)
            made = store.publish(out, "onnx", {}, ())
        store.remember("ab" * 32, {"artifact": made.id})
        print(made.id)
""")


def test_a_kill_after_every_fsync_and_rename_leaves_no_partial_object(tmp_path):
    """Fault injection: the writer is killed after its first, second, ... durable step, until one run gets through."""
    whole, steps = None, 0
    for steps in range(1, 60):
        root = tmp_path / "store"
        child = subprocess.run(
            [sys.executable, "-c", KILLED, str(root), str(steps)], capture_output=True, text=True, check=False
        )
        with Store(root) as store:
            for manifest in root.glob("artifacts/[0-9a-f][0-9a-f]/*/manifest.json"):
                found = store.load(manifest.parent.name)
                assert found is not None
                for name, sha in found.files.items():
                    assert sha256_file(store.folder(found.id) / name) == sha
            record = store.record("ab" * 32)
            assert record is None or store.load(record["artifact"]) is not None
            assert not list(root.glob("artifacts/*/.new-*"))
        if child.returncode == 0:
            whole = child.stdout.strip()
            break
        assert child.returncode == -signal.SIGKILL, child.stderr
        import shutil

        shutil.rmtree(root)
    assert steps > 8, "the child must have been killed at several places"
    assert whole is not None


@given(st.dictionaries(st.text(), st.one_of(st.integers(), st.floats(allow_nan=False), st.text(), st.none())))
def test_canonical_json_does_not_depend_on_the_order_of_keys(value):
    assert canonical_json(value) == canonical_json(dict(reversed(list(value.items()))))


def test_an_atomic_write_replaces_or_leaves(tmp_path):
    path: Path = tmp_path / "f.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]
