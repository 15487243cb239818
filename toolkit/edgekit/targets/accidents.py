"""What went wrong on a machine, as errors that a user can act on."""

from __future__ import annotations

from edgekit.errors import EdgekitError, InputError, TargetError, UnsupportedError


def as_error(error: dict[str, str], model: str, url: str) -> EdgekitError:
    """Return the error that the runner told as one of ours."""
    kind, text, remedy = error["kind"], error["text"], error["remedy"]
    if kind == "input":
        return InputError(
            text, where=model, remedy=remedy or "Compare the data's preprocessing with the model's inputs."
        )
    if kind == "space":
        remedy = "Free space on the machine (its disk, or what a user may use of it), then run the same command again."
        return TargetError(f"no room on the machine: {text}", where=url, remedy=remedy)
    if kind in ("missing", "memory"):
        return TargetError(text, where=url, remedy=remedy or "Free memory on the machine, or use a smaller model.")
    remedy = remedy or "The machine's runtime may be older than the model's opset: update it, or choose its profile."
    return UnsupportedError(text, where=f"{model} on {url}", remedy=remedy)


def died(status: int, stderr: str, url: str) -> TargetError:
    """Return the error of a runner that ended without a result."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    killed = "it was killed, as happens when memory runs out" if status in (-9, 137) else f"status {status}"
    return TargetError(
        f"the runner ended without a result: {killed}" + (f" ({lines[-1][:300]})" if lines else ""),
        where=url,
        remedy="Look for free memory and at the machine's log (dmesg), then try again.",
    )
