import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit import bundle, payload
from edgekit.bundle import Limits, member, read_bundle, write_bundle
from edgekit.errors import EdgekitError, InputError, IntegrityError, UsageError
from edgekit.jobs import PASSED_ON, read_feeds
from edgekit.manifest import Seal, payload_digest
from edgekit.npz import read_arrays
from edgekit.package import extract_package, read_package, write_package
from edgekit.payload import GoldenSamples
from edgekit.signing import generate_key
from edgekit.target import Bundle
from packages import LABELS, contents, feeds, outputs, save_model, tiny_package


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    generate_key(folder / "key")
    generate_key(folder / "other")
    return folder


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory):
    return tiny_package(tmp_path_factory.mktemp("unsigned"))


@pytest.fixture(scope="module")
def signed(tmp_path_factory, keys):
    return tiny_package(tmp_path_factory.mktemp("signed"), key=keys / "key")


def test_what_a_package_holds(unsigned):
    manifest = unsigned.manifest
    assert [file.name for file in manifest.files] == sorted(file.name for file in manifest.files)
    by_role = {}
    for file in manifest.files:
        by_role.setdefault(file.role, set()).add(file.name)
    assert by_role["model"] == {"model/model.onnx"}
    assert by_role["golden"] == {"golden/inputs.npz", "golden/outputs.npz"}
    assert by_role["job"] == {"golden.json", "measure.json"}
    assert "runner/runner.py" in by_role["runner"]
    assert by_role["readme"] == {"README.txt"}
    assert (manifest.name, manifest.labels, manifest.license) == ("tiny", LABELS, "unknown")
    assert manifest.profile.values["compute"]["fp32_tops"] == {"value": 0.1, "source": "estimated"}
    assert [spec.name for spec in (*manifest.inputs, *manifest.outputs)] == ["x", "y"]
    (variant,) = manifest.variants
    assert (variant.name, variant.runtime, variant.facts) == ("default", "onnxruntime", {"size": 9})
    assert variant.golden.samples == 3
    assert manifest.lineage[0].stage == "capture"
    assert unsigned.verdict.status == "pass"
    assert unsigned.seal.signature is None


def test_the_archive_as_any_tool_sees_it(unsigned):
    with tarfile.open(unsigned.path) as archive:
        names = archive.getnames()
        content = {name: archive.extractfile(name).read() for name in names}
    assert (names[0], names[-2:]) == ("manifest.json", ["verdict.json", "seal.json"])
    manifest, seal = json.loads(content["manifest.json"]), json.loads(content["seal.json"])
    for file in manifest["files"]:
        assert hashlib.sha256(content[file["name"]]).hexdigest() == file["sha256"]
    lines = "".join(f"{hashlib.sha256(content[name]).hexdigest()}  {name}\n" for name in names[:-2])
    assert seal["payload"] == hashlib.sha256(lines.encode()).hexdigest()
    assert seal["verdict"] == hashlib.sha256(content["verdict.json"]).hexdigest()


def test_same_contents_same_payload_whatever_was_timed(tmp_path, unsigned):
    again = tiny_package(tmp_path, details={"seconds": 12.5})
    assert again.seal.payload == unsigned.seal.payload
    assert again.seal.manifest == unsigned.seal.manifest
    assert again.seal.verdict != unsigned.seal.verdict
    assert tiny_package(tmp_path, details={}).path.read_bytes() == unsigned.path.read_bytes()


def test_any_other_content_is_another_payload(tmp_path, unsigned):
    for change in ({"labels": ("a", "b", "c")}, {"license": "MIT"}, {"precision": "fp16"}, {"golden": None}):
        assert tiny_package(tmp_path, **change).seal.payload != unsigned.seal.payload
    save_model(tmp_path / "compiled" / "model.onnx", scale=1.5)
    assert tiny_package(tmp_path).seal.payload != unsigned.seal.payload


def test_optional_files(tmp_path):
    (tmp_path / "reference.npz").write_bytes(b"opaque")
    (tmp_path / "inputs.npz").write_bytes(b"inputs")
    (tmp_path / "COPYING").write_text("Apache-2.0, in full")
    package = tiny_package(
        tmp_path,
        reference=tmp_path / "reference.npz",
        reference_inputs=tmp_path / "inputs.npz",
        license="Apache-2.0",
        license_file=tmp_path / "COPYING",
    )
    package.extract(tmp_path / "out", {"reference", "license"})
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"reference/outputs.npz", "reference/inputs.npz", "LICENSE"}
    assert (tmp_path / "out" / "reference" / "outputs.npz").read_bytes() == b"opaque"
    extracted = extract_package(package.path, tmp_path / "all")
    assert [path.read_bytes() for path in extracted.reference] == [b"opaque", b"inputs"]


def test_models_of_several_files_in_folders(tmp_path):
    (tmp_path / "compiled" / "größe").mkdir(parents=True)
    (tmp_path / "compiled" / "größe" / "model.onnx.data").write_bytes(os.urandom(100_000))
    package = tiny_package(tmp_path)
    extracted = extract_package(package.path, tmp_path / "out", roles={"model"})
    assert extracted.model.read_bytes() == (tmp_path / "compiled" / "model.onnx").read_bytes()
    assert (extracted.compiled().folder / "größe" / "model.onnx.data").stat().st_size == 100_000


def test_what_an_extracted_package_tells(tmp_path, unsigned):
    extracted = extract_package(unsigned.path, tmp_path / "out")
    assert extracted.compiled().facts == {
        "runtime": "onnxruntime",
        "model": "model.onnx",
        "providers": ["CPUExecutionProvider"],
        "size": 9,
    }
    assert extracted.reference is None
    assert extracted.carried_facts() == {"task": "image-classification", "labels": list(LABELS)}
    for found, wanted in zip(read_feeds(tmp_path / "out/golden/inputs.npz"), feeds(), strict=True):
        np.testing.assert_array_equal(found["x"], wanted["x"])
    assert list(read_arrays(tmp_path / "out/golden/outputs.npz")) == ["0:y", "1:y", "2:y"]
    with pytest.raises(UsageError, match="no variant"):
        unsigned.variant("int8")


@pytest.mark.parametrize("job", ["golden", "measure"])
def test_a_device_runs_the_jobs_as_they_stand(tmp_path, unsigned, job):
    subprocess.run(["tar", "xf", unsigned.path], cwd=tmp_path, check=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    readme = (tmp_path / "README.txt").read_text()
    assert f"python3 runner/runner.py {job} {job}.json" in readme
    subprocess.run([sys.executable, "runner/runner.py", job, f"{job}.json"], cwd=tmp_path, check=True, env=environment)
    result = json.loads((tmp_path / f"{job}-result.json").read_text())
    assert "error" not in result
    assert result["matches"] is True if job == "golden" else len(result["series_ms"]) >= 100


def test_the_commands_of_the_format_page(tmp_path, keys):
    """docs/package.md is followed to the letter, in a folder with a signed `tiny.edgekit` and the key to check it."""
    page = (Path(__file__).resolve().parents[1] / "docs" / "package.md").read_text(encoding="utf-8")
    package = tiny_package(tmp_path, key=keys / "key")
    shutil.copy(keys / "key.pub", tmp_path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    told = ""
    for script in re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stderr}"
        told += done.stdout
    assert '"matches": true' in told
    assert told.count(package.seal.payload) == 2
    assert "Signature Verified Successfully" in told


def test_readme_without_samples(tmp_path):
    package = tiny_package(tmp_path, golden=None)
    package.extract(tmp_path / "out")
    assert "No samples were given" in (tmp_path / "out" / "README.txt").read_text()
    assert not (tmp_path / "out" / "golden.json").exists()


def test_samples_whose_outputs_only_the_device_knows(tmp_path):
    package = tiny_package(tmp_path, golden=GoldenSamples(inputs=feeds(), outputs=None))
    assert package.variant().golden.outputs is None
    assert {file.name for file in package.manifest.files if file.role == "job"} == {"measure.json"}


def test_contents_that_do_not_fit_together(tmp_path):
    with pytest.raises(EdgekitError, match="as many outputs"):
        tiny_package(tmp_path, golden=GoldenSamples(inputs=feeds(3), outputs=outputs(feeds(2))))
    facts = {"runtime": "onnxruntime", "model": "missing.onnx"}
    with pytest.raises(EdgekitError, match=r"missing\.onnx"):
        tiny_package(tmp_path, compiled=Bundle(folder=tmp_path / "compiled", facts=facts))
    with pytest.raises(InputError, match="cannot be read"):
        tiny_package(tmp_path, reference=tmp_path / "missing.npz")
    with pytest.raises(UsageError, match="NAME"):
        write_package(tmp_path / "a.tar", contents(tmp_path), verdict=None, details={})
    assert [path.name for path in tmp_path.iterdir()] == ["compiled"]


def test_signatures(signed, unsigned, keys):
    assert read_package(signed.path).trusted is False
    assert read_package(signed.path, key=keys / "key.pub").trusted is True
    with pytest.raises(IntegrityError, match="another key"):
        read_package(signed.path, key=keys / "other.pub")
    with pytest.raises(IntegrityError, match="not signed"):
        read_package(unsigned.path, key=keys / "key.pub")
    with pytest.raises(InputError, match="private key"):
        read_package(signed.path, key=keys / "key")


def repack(source, target, **changes):
    """Write an archive with the members of another, some replaced; None drops one."""
    entries = read_bundle(source, Limits())
    content = {entry.name: bundle.read_member(source, entry, 1 << 30) for entry in entries}
    content.update(changes)
    write_bundle(target, [member(name, value) for name, value in content.items() if value is not None])
    return target


def reseal(source, target, **changes):
    """Do what a forger without the key can: change members and seal again, unsigned."""
    repack(source, target, **changes)
    entries = read_bundle(target, Limits())
    seal = Seal(
        format=1,
        manifest=entries[0].sha256,
        payload=payload_digest(entries[:-2]),
        verdict=entries[-2].sha256,
        signature=None,
    )
    return repack(target, target, **{"seal.json": seal.encode()})


def test_a_member_changed_added_dropped_or_moved(tmp_path, signed):
    forged = tmp_path / "forged.edgekit"
    for changes in (
        {"README.txt": b"changed"},
        {"more.txt": b"added"},
        {"README.txt": None},
        {"verdict.json": b"{}"},
        {"manifest.json": b"{}"},
        {"seal.json": None},
        {"seal.json": b"{}"},
    ):
        with pytest.raises(IntegrityError):
            read_package(repack(signed.path, forged, **changes))
    entries = read_bundle(signed.path, Limits())
    members = [member(entry.name, bundle.read_member(signed.path, entry, 1 << 30)) for entry in entries]
    for index in range(len(members) - 1):
        swapped = members.copy()
        swapped[index : index + 2] = swapped[index + 1], swapped[index]
        write_bundle(forged, swapped)
        with pytest.raises(IntegrityError):
            read_package(forged)


def test_a_forger_without_the_key_can_only_take_the_signature_away(tmp_path, signed, keys):
    forged = reseal(signed.path, tmp_path / "forged.edgekit", **{"README.txt": b"forged"})
    with pytest.raises(InputError, match="does not fit"):  # its manifest still tells the old hash
        read_package(forged)
    stripped = reseal(signed.path, tmp_path / "stripped.edgekit")
    assert read_package(stripped).seal.signature is None
    with pytest.raises(IntegrityError, match="not signed"):
        read_package(stripped, key=keys / "key.pub")
    # the seal of another package
    other = tiny_package(tmp_path, key=keys / "key", license="MIT")
    stolen = bundle.read_member(other.path, read_bundle(other.path, Limits())[-1], 1 << 20)
    with pytest.raises(IntegrityError):
        read_package(repack(signed.path, forged, **{"seal.json": stolen}), key=keys / "key.pub")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m.update(format=2), "format 2"),
        (lambda m: m.update(more=1), "more"),
        (lambda m: m.pop("labels"), "labels"),
        (lambda m: m.update(variants=[]), "does not fit"),
        (lambda m: m["variants"][0].update(model="../../etc/passwd"), "does not fit"),
        (lambda m: m["variants"][0].update(folder="/etc"), "does not fit"),
        (lambda m: m["variants"][0]["golden"].update(inputs="runner/runner.py"), "does not fit"),
        (lambda m: m.update(reference={"outputs": "/etc/passwd", "inputs": None}), "does not fit"),
        (lambda m: m["files"].pop(), "does not fit"),
        (lambda m: m["files"].reverse(), "does not fit"),
        (lambda m: m["files"][0].update(role="plugin"), "role"),
    ],
)
def test_manifests_that_edgekit_never_writes(tmp_path, unsigned, change, text):
    manifest = json.loads(msgspec.json.encode(unsigned.manifest))
    change(manifest)
    forged = reseal(unsigned.path, tmp_path / "a.edgekit", **{"manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(InputError, match=text) as caught:
        read_package(forged)
    assert caught.value.remedy


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"format":1}'])
def test_documents_that_are_no_documents(tmp_path, unsigned, raw):
    for name in ("manifest.json", "verdict.json"):
        with pytest.raises(InputError):
            read_package(reseal(unsigned.path, tmp_path / "a.edgekit", **{name: raw}))
    with pytest.raises(IntegrityError):
        read_package(repack(unsigned.path, tmp_path / "a.edgekit", **{"seal.json": raw}))


def test_files_that_are_no_packages(tmp_path):
    for name, content in [
        ("a.zip", b"PK\x03\x04" + bytes(1000)),
        ("a", os.urandom(2000)),
        ("model.onnx", b"\x08\x08"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="not an edgekit package"):
            read_package(tmp_path / name)
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.add(tmp_path / "a", "a")
    with pytest.raises(InputError, match="not an edgekit package"):
        read_package(tmp_path / "other.tar")
    with pytest.raises(InputError, match="cannot be read"):
        read_package(tmp_path / "missing.edgekit")
    (tmp_path / "a.zip").rename(tmp_path / "a.edgekit")  # it claims to be one: then it is a damaged one
    with pytest.raises(IntegrityError):
        read_package(tmp_path / "a.edgekit")


@pytest.mark.parametrize("name", ["damaged.edgekit", "damaged"])
def test_a_flip_at_every_offset_outside_of_payload_contents(tmp_path, signed, name):
    whole = signed.path.read_bytes()
    entries = read_bundle(signed.path, Limits())
    offsets = set(range(len(whole)))
    for entry in entries[1:-2]:  # contents of the payload: by hash, see the property test
        offsets -= set(range(entry.offset + 1, entry.offset + entry.size - 1))
    for entry in (entries[0], entries[-2]):
        offsets -= set(range(entry.offset + 300, entry.offset + entry.size - 300))
    path = tmp_path / name
    path.write_bytes(whole)
    with path.open("r+b") as file:
        for offset in sorted(offsets):
            os.pwrite(file.fileno(), bytes([whole[offset] ^ 1 << offset % 8]), offset)
            with pytest.raises(IntegrityError):
                read_package(path)
            os.pwrite(file.fileno(), whole[offset : offset + 1], offset)
    read_package(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_flip_anywhere(tmp_path_factory, signed, unsigned, data):
    package = data.draw(st.sampled_from([signed, unsigned]))
    whole = bytearray(package.path.read_bytes())
    for _ in range(data.draw(st.sampled_from([1, 1, 2, 20]))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / data.draw(st.sampled_from(["flipped.edgekit", "flipped"]))
    path.write_bytes(whole)
    if bytes(whole) == package.path.read_bytes():
        return
    with pytest.raises(IntegrityError) as caught:
        read_package(path)
    assert caught.value.exit_status == 6


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_cut_extended_and_stretched(tmp_path_factory, signed, data):
    whole = signed.path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    more = data.draw(st.binary(min_size=1, max_size=1500) | st.just(bytes(512)))
    path = tmp_path_factory.getbasetemp() / "cut.edgekit"
    for changed in (whole[:at], whole + more, whole[:at] + more + whole[at:], whole[:at] + whole[at + 1 :]):
        path.write_bytes(changed)
        with pytest.raises(IntegrityError):
            read_package(path)


def test_the_jobs_in_a_package_say_how_its_engine_is_built(tmp_path):
    """A device that checks itself builds what the host would have asked for: on the DLA, calibrated, sparse."""
    told = {name: {"of": name} for name in PASSED_ON}
    plain = contents(tmp_path)
    facts = {**plain.compiled.facts, **told, "build": "build.json"}
    jobs = payload._jobs(replace(plain, compiled=Bundle(folder=plain.compiled.folder, facts=facts)))
    assert set(jobs) == {"measure.json", "golden.json"}
    for job in jobs.values():
        assert {name: job[name] for name in PASSED_ON} == told
        assert "build" not in job
