"""What a build or a validation comes to: the object that `--json` prints and `edgekit.build` returns."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from edgekit.budget import Check, Verdict
from edgekit.errors import EdgekitError
from edgekit.events import Finding
from edgekit.stage_runs import StageRun

_JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """An error as JSON: see `edgekit.errors`."""

    kind: str
    text: str
    where: str
    remedy: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a command.

    Attributes:
        status: `pass`, `fail` (a budget was missed), `unproven`, or `error` (nothing could be judged).
        exit: the exit status.
        error: what went wrong, or None.
        checks: every figure and its budget.
        artifact: id of the candidate, or None.
        package: path of the package, or None when nothing shipped.
        stages: what ran.
        coverage: share of weights and MACs at the asked precision.
        findings: what is worth knowing.
    """

    status: Literal["pass", "fail", "unproven", "error"]
    exit: int
    error: ErrorReport | None = None
    checks: tuple[Check, ...] = ()
    artifact: str | None = None
    package: str | None = None
    stages: tuple[StageRun, ...] = ()
    coverage: dict[str, Any] = {}
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> bytes:
        """Encode as one JSON object; of file names that are not UTF-8 the undecodable bytes become hex escapes."""
        return msgspec.json.format(msgspec.json.encode(_encodable(msgspec.to_builtins(self))), indent=2)


def of_error(error: EdgekitError, stages: tuple[StageRun, ...] = (), findings: tuple[Finding, ...] = ()) -> Result:
    """Turn an error into a result."""
    report = ErrorReport(kind=error.kind, text=error.text, where=error.where, remedy=error.remedy)
    status: Literal["fail", "error"] = "fail" if error.kind == "budget" else "error"
    return Result(status=status, exit=error.exit_status, error=report, stages=stages, findings=findings)


def exit_of(verdict: Verdict, *, strict: bool) -> int:
    """Exit status of a verdict: 3 when a budget is missed, or unproven under `strict`."""
    missed = verdict.status == "fail" or (strict and verdict.status == "unproven")
    return 3 if missed else 0


def schema() -> dict[str, Any]:
    """Return the JSON schema of `--json`."""
    return {"$schema": _JSON_SCHEMA, **msgspec.json.schema(Result)}


def _encodable(value: Any) -> Any:
    """Return a JSON value whose strings can be encoded as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value
