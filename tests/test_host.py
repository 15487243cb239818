from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from edgekit import host
from edgekit.profile import Compute, Cpu, Sourced

X86 = "processor\t: 0\nflags\t\t: fpu avx2 fma avx512f avx512_vnni amx_int8\nbugs\t:\n"
ARM = "processor\t: 0\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd evtstrm aes asimdhp asimddp i8mm\n"


@pytest.mark.parametrize(
    ("machine", "text", "features"),
    [
        ("x86_64", X86, ("avx2", "fma", "avx512f", "avx512_vnni", "amx_int8")),
        ("AMD64", X86, ("avx2", "fma", "avx512f", "avx512_vnni", "amx_int8")),
        ("aarch64", ARM, ("dotprod", "fp16", "i8mm")),
        ("arm64", ARM, ("dotprod", "fp16", "i8mm")),
        ("riscv64", "isa\t: rv64imafdc\n", ()),
        ("aarch64", "", ()),
    ],
)
def test_features_go_by_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, text: str, features: tuple[str, ...]
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text, encoding="utf-8")
    assert host.cpu_features(cpuinfo) == features


def test_no_cpuinfo_is_no_feature(tmp_path: Path) -> None:
    assert host.cpu_features(tmp_path / "none") == ()


def test_the_probe_is_the_same_twice_and_fits_a_profile() -> None:
    tables = host.probe()
    assert tables == host.probe()
    assert msgspec.convert(tables["cpu"], Cpu).arch == host.machine()
    compute = msgspec.convert(tables["compute"], Compute)
    assert compute.fp32_tops.estimated
    assert msgspec.convert(tables["memory"]["ram_mb"], Sourced).value >= 100


def test_without_sysconf_memory_is_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sysconf")
    assert host.ram_mb() is None
    assert host.probe()["memory"]["ram_mb"]["source"].startswith("estimated")


def test_dot_products_double_the_int8_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_clock_ghz", lambda: 2.0)
    plain = host._peaks(4, ("avx2",))
    dots = host._peaks(4, ("avx2", "avx_vnni"))
    assert plain["fp32_tops"]["value"] == dots["fp32_tops"]["value"] == 0.128
    assert (plain["int8_tops"]["value"], dots["int8_tops"]["value"]) == (0.256, 0.512)
    assert "fp16_tops" not in plain
    assert host._peaks(4, ("dotprod", "fp16"))["fp16_tops"]["value"] == 0.256


def test_the_last_cache_counts(tmp_path: Path) -> None:
    for index, size in enumerate(("48K\n", "32K\n", "32768K\n", "1024K\n", "odd\n")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size, encoding="ascii")
    assert host.cache_mb(tmp_path) == pytest.approx(33.554432)
    assert host.cache_mb(tmp_path / "none") is None


@pytest.mark.parametrize(("told", "threads"), [("3", 3), ("", None), ("0", None), ("2,1", None), ("many", None)])
def test_trainings_take_all_cores_unless_openmp_is_told(
    monkeypatch: pytest.MonkeyPatch, told: str, threads: int | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert host.training_threads() == (threads or len(os.sched_getaffinity(0)))
