"""Which sample is for what: deterministic, by content, so that no content is in two splits.

Sizes, for n readable samples, c asked calibration samples (256 when none are asked):
- Nothing says what is for what, and n < 20: all calibrate (at most c), evaluation stays empty.
- Nothing says it, n >= 20: calibration gets min(c, max(n / 5, min(n / 2, 64))), evaluation the rest; when a stage
  trains, evaluation gets 30 % of that rest and training 70 %.
- Folders or files say it: evaluation is what is called so (else validation); calibration is what is called so, else
  validation (when there is an evaluation split too), else as many samples of training as above; at most c. When a
  stage trains and nothing is called training, what calibration does not need trains. What is in evaluation is dropped
  from calibration and training, what is in calibration from training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edgekit.data.faults import noted, warned
from edgekit.data.finding import Role
from edgekit.data.limits import CALIBRATION, FEW_SAMPLES
from edgekit.events import Finding

Key = tuple[Role, int]
"""A sample: its source's role, and its index there."""

_SURELY = 64
_EVALUATION_PERCENT = 30


@dataclass
class Splits:
    """Samples by split, each in the order of its source."""

    calibration: list[Key] = field(default_factory=list)
    training: list[Key] = field(default_factory=list)
    evaluation: list[Key] = field(default_factory=list)

    def ordered(self) -> Splits:
        """Return them sorted by source and index."""
        return Splits(sorted(self.calibration), sorted(self.training), sorted(self.evaluation))


def split(
    content: Mapping[Key, bytes], *, limit: int | None, training: bool, seed: int, findings: list[Finding]
) -> Splits:
    """Assign every sample to a split, or to none.

    Args:
        content: sha256 of each readable sample's decoded content.
        limit: asked number of calibration samples.
        training: a stage trains.
        seed: another seed gives another split.
        findings: what a user should know is appended.
    """
    roles: set[Role] = {role for role, _ in content}
    found = Splits()
    by_role = {role: [key for key in content if key[0] == role] for role in roles}
    if len(roles) == 1 and "calibration" not in roles:
        (role,) = roles
        if role != "all":
            findings.append(_only(role))
        _divide(by_role[role], content, found, limit=limit, training=training, seed=seed)
    else:
        _assign(by_role, content, found, limit=limit, training=training, seed=seed, findings=findings)
    _tell_sizes(found, len(content), limit, findings)
    return found.ordered()


def _divide(
    keys: Sequence[Key],
    content: Mapping[Key, bytes],
    found: Splits,
    *,
    limit: int | None,
    training: bool,
    seed: int,
) -> None:
    """Split samples of which nothing says what they are for."""
    groups = _groups(keys, content, seed)
    if len(keys) < FEW_SAMPLES:
        found.calibration = [key for group in groups for key in group][:limit]
        return
    found.calibration, rest = _fill(groups, calibration_size(len(keys), limit))
    count = sum(len(group) for group in rest)
    if training:
        found.evaluation, rest = _fill(rest, max(1, count * _EVALUATION_PERCENT // 100))
        found.training = [key for group in rest for key in group]
    else:
        found.evaluation = [key for group in rest for key in group]


def calibration_size(count: int, limit: int | None) -> int:
    """Return how many of `count` samples calibrate."""
    return min(CALIBRATION if limit is None else limit, max(count // 5, min(count // 2, _SURELY)))


def _assign(
    by_role: Mapping[Role, list[Key]],
    content: Mapping[Key, bytes],
    found: Splits,
    *,
    limit: int | None,
    training: bool,
    seed: int,
    findings: list[Finding],
) -> None:
    """Split samples whose folders or files say what they are for."""
    asked = CALIBRATION if limit is None else limit
    trains, validates = by_role.get("training", []), by_role.get("validation", [])
    found.evaluation = by_role.get("evaluation") or validates
    taken = {content[key] for key in found.evaluation}
    pool = by_role.get("calibration") or (validates if validates is not found.evaluation else [])
    calibrates, dropped = _without(pool, taken, content)
    trains, more = _without(trains, taken, content)
    if calibrates and training and not trains and found.evaluation:
        found.calibration, rest = _fill(_groups(calibrates, content, seed), calibration_size(len(calibrates), limit))
        trains = [key for group in rest for key in group]
        findings.append(_shared(len(trains)))
    elif calibrates:
        found.calibration = [key for group in _groups(calibrates, content, seed) for key in group][:asked]
    elif trains:
        groups = _groups(trains, content, seed)
        size = calibration_size(len(trains), limit) if training else min(asked, len(trains))
        found.calibration, rest = _fill(groups, size)
        trains = [key for group in rest for key in group]
    taken |= {content[key] for key in found.calibration}
    trains, again = _without(trains, taken, content)
    if not found.evaluation and trains:
        findings.append(_only("training"))
        found.evaluation, rest = _fill(_groups(trains, content, seed), len(trains) * _EVALUATION_PERCENT // 100)
        trains = [key for group in rest for key in group]
    found.training = trains if training else []
    _tell_dropped(dropped + more, again if training else 0, findings)


def _groups(keys: Iterable[Key], content: Mapping[Key, bytes], seed: int) -> list[list[Key]]:
    """Return samples of equal content together, in an order that content and seed decide."""
    groups: dict[bytes, list[Key]] = {}
    for key in keys:
        groups.setdefault(content[key], []).append(key)
    salt = str(seed).encode() + b"\0"
    return [groups[name] for name in sorted(groups, key=lambda name: hashlib.sha256(salt + name).digest())]


def _fill(groups: Sequence[list[Key]], size: int) -> tuple[list[Key], list[list[Key]]]:
    """Take whole groups until `size` samples are reached; a group that is too large stays in the rest.

    Where none fits, the first group is taken, cut to `size`: what is cut off is in no split.
    """
    taken: list[Key] = []
    rest: list[list[Key]] = []
    for group in groups:
        if len(taken) + len(group) <= size:
            taken.extend(group)
        else:
            rest.append(group)
    if not taken and rest and size > 0:
        taken, rest = rest[0][:size], rest[1:]
    return taken, rest


def _without(keys: Iterable[Key], taken: set[bytes], content: Mapping[Key, bytes]) -> tuple[list[Key], int]:
    listed = list(keys)
    kept = [key for key in listed if content[key] not in taken]
    return kept, len(listed) - len(kept)


def _only(role: Role) -> Finding:
    if role == "training":
        return warned(
            "data-no-evaluation-split",
            text="evaluation samples are held out of the training split: a model that was trained on them looks "
            "better than it is",
            remedy="Add a folder or file 'evaluation' with samples that the model has not seen.",
        )
    return noted("data-one-split", text=f"only a split for {role}: calibration samples are taken out of it")


def _shared(count: int) -> Finding:
    return warned(
        "data-no-training-split",
        text=f"no samples for training: {count} of those for calibration are trained on",
        remedy="Add a folder or file 'training' with as many samples as there are.",
    )


def _tell_dropped(evaluation: int, calibration: int, findings: list[Finding]) -> None:
    for count, split_name in ((evaluation, "evaluation"), (calibration, "calibration")):
        if count:
            findings.append(
                warned(
                    "data-duplicates-across-splits",
                    text=f"{count} samples dropped from other splits: their content is in {split_name}",
                    remedy="Make the splits disjoint, so that accuracy means something.",
                )
            )


def _tell_sizes(found: Splits, total: int, limit: int | None, findings: list[Finding]) -> None:
    count = len(found.calibration)
    if count < FEW_SAMPLES:
        rest = "" if found.evaluation else " and nothing is left for evaluation: accuracy stays unproven"
        findings.append(
            warned(
                "data-few-samples",
                text=f"{count} sample{'s' if count != 1 else ''} to calibrate with{rest}",
                remedy=f"Give {FEW_SAMPLES} or more, some hundreds for good ranges and a sound verdict. In a folder "
                "of .npz each file is one feed; give a single .npz when its leading axis counts samples.",
            )
        )
    elif not found.evaluation:
        findings.append(
            warned(
                "data-no-evaluation-split",
                text="no samples for evaluation: accuracy stays unproven",
                remedy="Add a folder or file 'evaluation'.",
            )
        )
    if limit is not None and count < limit:
        of = "" if count == total else f" (of {total} samples; the rest is for the other splits)"
        findings.append(
            warned(
                "data-fewer-than-asked",
                text=f"asked {limit}, found {count} calibration samples{of}",
                remedy="Give more samples or ask for fewer.",
            )
        )
