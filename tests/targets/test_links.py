"""A target behind a link that is cut, stays cut, or counts bytes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import onnx_models
from edgekit.errors import TargetError
from edgekit.profile import load_profile
from edgekit.target import Bundle
from edgekit.targets import chunks, open_target, workplace
from house import profile
from sshd import Proxy

FACTS = {"runtime": "onnxruntime", "model": "model.onnx", "providers": ["CPUExecutionProvider"]}
HOST = profile(cpu=load_profile("host").cpu)


@pytest.fixture
def bundle(tmp_path):
    onnx_models.linear(tmp_path / "model.onnx", features=64, classes=10)
    return Bundle(folder=tmp_path, facts=FACTS)


def feeds(count):
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(1 + i % 2, 64)).astype(np.float32)} for i in range(count)]


def here(bundle, given):
    session = onnxruntime.InferenceSession(str(bundle.folder / "model.onnx"), providers=["CPUExecutionProvider"])
    return [session.run(None, feed)[0] for feed in given]


@pytest.fixture
def proxied(sshd, tmp_path, monkeypatch):
    """A target behind a proxy, and the proxy; what the target waits is cut short."""
    url, environment = sshd
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "home"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(workplace, "PAUSES", (0.1, 0.1, 0.1))
    proxy = Proxy(int(url.rpartition(":")[2]))
    with open_target(f"ssh://127.0.0.1:{proxy.port}", HOST) as target:
        yield target, proxy
    proxy.close()


@pytest.mark.system("openssh-server")
def test_an_evaluation_goes_on_after_the_link_broke(proxied, bundle, monkeypatch):
    """Cut twice, in the middle of the work: every output comes, once and in order."""
    target, proxy = proxied
    monkeypatch.setattr(chunks, "CHUNK_FEEDS", 2)
    given, found = feeds(8), []
    for number, outputs in enumerate(target.run(bundle, given)):
        found.append(outputs["y"])
        if number in {1, 5}:
            proxy.cut()
    for one, other in zip(found, here(bundle, given), strict=True):
        np.testing.assert_array_equal(one, other)
    (finding,) = [finding for finding in target.findings if finding.rule == "target-link"]
    assert "was made again" in finding.text


@pytest.mark.system("openssh-server")
def test_a_link_that_stays_broken_is_an_error_that_names_the_first_reason(proxied, bundle):
    target, proxy = proxied
    outputs = target.run(bundle, feeds(2000))
    next(outputs)
    proxy.close()
    with pytest.raises(TargetError, match="cannot be reached") as caught:
        list(outputs)
    assert "not open" not in caught.value.text
    assert caught.value.exit_status == 5


@pytest.mark.system("openssh-server")
def test_what_goes_over_a_network_is_compressed(proxied, bundle):
    target, proxy = proxied
    target.probe()
    list(target.run(bundle, feeds(1)))
    before = proxy.passed
    given = [{"x": np.ones((4000, 64), np.float32)}] * 4
    for outputs, expected in zip(target.run(bundle, given), here(bundle, given), strict=True):
        np.testing.assert_array_equal(outputs["y"], expected)
    assert proxy.passed - before < sum(feed["x"].nbytes for feed in given) / 5


@pytest.mark.system("openssh-server")
def test_a_timed_run_is_not_repeated(proxied, bundle, monkeypatch):
    target, proxy = proxied
    target.probe()
    proxy.cut()
    with pytest.raises(TargetError, match="cannot be reached"):
        target.measure(bundle, feeds(1)[0], runs=100, threads=1)
