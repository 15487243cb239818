"""Which options of Qualcomm's provider may be set, and to what: the library takes unknown names and words silently."""

from __future__ import annotations

from collections.abc import Mapping

from edgekit.errors import UsageError, did_you_mean

_FLAGS = ("0", "1")
_WORDS: dict[str, tuple[str, ...]] = {
    "backend_type": ("htp",),
    "profiling_level": ("off", "basic", "detailed"),
    "htp_graph_finalization_optimization_mode": ("0", "1", "2", "3"),
    "htp_performance_mode": (
        *("default", "burst", "balanced", "high_performance", "high_power_saver", "low_balanced"),
        *("low_power_saver", "power_saver", "extreme_power_saver", "sustained_high_performance"),
    ),
    "enable_htp_fp16_precision": _FLAGS,
    "offload_graph_io_quantization": _FLAGS,
    "enable_framework_op_trace": _FLAGS,
}
_NUMBERS = {"soc_model": (1, 255), "vtcm_mb": (1, 64)}
_FILES = ("profiling_file_path",)


def check_options(options: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the options; UsageError for a name or value that the provider would ignore without a word."""
    known = [*_WORDS, *_NUMBERS, *_FILES]
    for name, value in options.items():
        place = f"{where}, {name}"
        if name not in known:
            raise UsageError("is no option of the QNN provider", where=place, remedy=did_you_mean(name, known))
        if name in _WORDS and value not in _WORDS[name]:
            raise UsageError(
                f"'{value}' is no value of it", where=place, remedy=did_you_mean(value, list(_WORDS[name]))
            )
        if name in _NUMBERS:
            low, high = _NUMBERS[name]
            if not value.isdecimal() or not low <= int(value) <= high:
                raise UsageError(f"'{value}' is no number from {low} to {high}", where=place, remedy="Give one SoC.")
    return dict(options)
