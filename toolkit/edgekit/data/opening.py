"""Open a data set: find it, check and hash every sample once, settle labels, split."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.artifact import TensorSpec, digest
from edgekit.data import factory, labels, splitting
from edgekit.data.declared import read_declared
from edgekit.data.faults import NonFiniteError, Notes, named, noted, printable, warned
from edgekit.data.finding import Place, Role, find, named_splits
from edgekit.data.limits import BAD_SHARE, CALIBRATION
from edgekit.data.reading import Reading, plan_reading
from edgekit.data.samples import Dataset, Grouped, Samples, chosen
from edgekit.data.sources import Source, Split, scan
from edgekit.data.splitting import Key
from edgekit.data.text import TOKENIZER
from edgekit.errors import InputError, UsageError
from edgekit.events import Finding, Found, Listener, ignore

_NAMED_BAD = 200


def open_dataset(  # noqa: PLR0913 - keyword-only options, as the command line has them
    path: str | Path,
    inputs: Sequence[TensorSpec],
    *,
    preprocessing: Mapping[str, Any] | None = None,
    processor: Path | None = None,
    class_names: Sequence[str] = (),
    limit: int | None = None,
    training: bool = False,
    strict: bool = False,
    seed: int = 0,
    listen: Listener = ignore,
) -> Dataset:
    """Open a data set for a model: every sample is decoded, checked and hashed once; then it is read as needed.

    Args:
        path: a folder of images by class (`CLASS/*.png`; flat: unlabelled); a `.npz` (arrays named as the inputs,
            labels as `y`, `label` or `labels`, the leading axis counts samples); a `.npy`; a folder of `.npz` that
            are one feed each; a `.csv`, `.tsv` or `.jsonl` with the columns `text`, `text_pair`, `label`; a folder
            saved by `datasets`; or `python:module:factory`. Folders, files or splits called train, calibration,
            validation or test give the splits (see `splitting`).
        inputs: the model's inputs.
        preprocessing: what turns raw input into a feed (see `rules`), or what a `Dataset` recorded. Where it is
            None, `preprocessing.toml` beside the data counts, then `processor`, then defaults with a warning.
        processor: a Hugging Face model folder whose image processor or tokenizer is used.
        class_names: names of the model's outputs, in order (`id2label`); labels are matched to them by name.
        limit: asked number of calibration samples; None: at most 256, without a warning when there are fewer.
        training: a stage trains: fill the training split, which else stays empty.
        strict: one unreadable sample refuses the data; else up to 5 % are skipped with a warning.
        seed: another seed gives another split.
        listen: told of progress and of findings.

    Returns:
        The data set. Its id depends on content, labels, splits and preprocessing, not on where the files lie.

    Raises:
        InputError: nothing to read, or samples that the model cannot take: names file, array and remedy.
        UsageError: `limit` below 1, no inputs.
        TargetError: a package that the format needs is not installed.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"{limit} calibration samples", remedy="Ask for at least one.")
    if not inputs:
        raise UsageError("a model without inputs takes no data")
    path = str(path)
    findings: list[Finding] = []
    places = _places(path, findings)
    declared = read_declared(path, preprocessing, processor, inputs, findings)
    plan = plan_reading(places, inputs, declared, findings)
    content = _scan(
        plan.sources,
        _candidates(plan.sources, limit, training=training, seed=seed),
        listen,
        findings,
        strict=strict,
    )
    if not content:
        raise InputError("no samples", where=printable(path), remedy="Give data with at least one sample.")
    chosen_keys = splitting.split(content, limit=limit, training=training, seed=seed, findings=findings)
    kept = {
        "calibration": chosen_keys.calibration,
        "training": chosen_keys.training,
        "evaluation": chosen_keys.evaluation,
    }
    names = labels.Names(
        data=declared.classes or plan.classes,
        ordered=bool(declared.classes),
        model=tuple(class_names),
        where=printable(path),
    )
    encoded, classes = _labels(plan, kept, names, findings)
    splits = {name: _split(plan.sources, keys, encoded.get(name)) for name, keys in kept.items()}
    ready = _grouped(splits, plan.rows, printable(path), findings)
    for finding in findings:
        listen(Found(finding=finding))
    record = plan.preprocessing.record()
    identity = {
        "preprocessing": record,
        "labels": classes,
        "splits": {k: _identity(v) for k, v in splits.items()},
    }
    return Dataset(
        id=digest(identity),
        preprocessing=record,
        labels=classes,
        findings=tuple(findings),
        files={} if plan.encoder is None else {TOKENIZER: plan.encoder.path},
        **ready,
    )


def _places(path: str, findings: list[Finding]) -> dict[Role, Place]:
    if path.startswith(factory.PREFIX):
        return named_splits(factory.load(path), "factory", path, path)
    return find(path, findings)


def _candidates(
    sources: Mapping[Role, Source], limit: int | None, *, training: bool, seed: int
) -> dict[Role, list[int]]:
    """Return which samples to check: of splits that only calibration draws from, a few more than it asks for."""
    enough = (CALIBRATION if limit is None else limit) * 5 // 4 + 32
    found = {}
    for role, source in sources.items():
        ids = source.records.ids
        evaluated = "evaluation" in sources or "validation" in sources
        only_calibrates = role == "calibration" or (role == "training" and evaluated and not training)
        found[role] = chosen(ids, enough, seed=seed) if only_calibrates and len(ids) > enough else list(range(len(ids)))
    return found


def _scan(
    sources: Mapping[Role, Source],
    wanted: Mapping[Role, Sequence[int]],
    listen: Listener,
    findings: list[Finding],
    *,
    strict: bool,
) -> dict[Key, bytes]:
    """Check the samples and return the hashes of those that can be read.

    Raises:
        InputError: values that are not finite, or too many samples that cannot be read: names them.
    """
    notes, content = Notes(), dict[Key, bytes]()
    bad: list[InputError] = []
    wild: list[InputError] = []
    total = sum(len(indices) for indices in wanted.values())
    for role, source in sources.items():
        for checked in scan(source, wanted[role], listen):
            if checked.error is None:
                content[role, checked.index] = source.digests[checked.index]
                notes.add(checked.notes, source.records.ids[checked.index])
            else:
                (wild if isinstance(checked.error, NonFiniteError) else bad).append(checked.error)
    if wild:
        raise InputError(
            f"{len(wild)} of {total} samples are not finite: {_told(wild)}",
            where=wild[0].where,
            remedy="Remove or repair them: ranges and accuracy mean nothing with them.",
        )
    if bad and (strict or len(bad) > BAD_SHARE * total):
        rule = "none may be with --strict" if strict else f"at most {BAD_SHARE:.0%} are skipped"
        raise InputError(
            f"{len(bad)} of {total} samples cannot be read, {rule}: {_told(bad)}",
            where=bad[0].where,
            remedy="Remove or repair them.",
        )
    if bad:
        findings.append(
            warned(
                "data-bad-files",
                remedy="Remove or repair them.",
                text=f"{len(bad)} of {total} samples skipped, they cannot be read: {_told(bad)}",
            )
        )
    findings.extend(notes.findings(total))
    return content


def _told(errors: Sequence[InputError]) -> str:
    return named([f"{error.where} ({error.text})" for error in errors], _NAMED_BAD)


def _labels(
    plan: Reading, kept: Mapping[str, Sequence[Key]], names: labels.Names, findings: list[Finding]
) -> tuple[dict[str, labels.Labels], tuple[str, ...]]:
    given = {}
    for split, keys in kept.items():
        if not keys:
            continue
        role, indices = keys[0][0], [index for _, index in keys]
        records = plan.sources[role].records
        values = records.labels
        if values is None:
            continue
        given[split] = labels.Given(
            values=values[np.array(indices)]
            if isinstance(values, np.ndarray)
            else [values[index] for index in indices],
            ids=[records.ids[index] for index in indices],
            folders=plan.folders,
            rows=plan.feed_rows,
        )
    if not given:
        return {}, names.model or names.data
    encoded, classes, found = labels.encode(given, names)
    findings.extend(found)
    return encoded, classes


def _split(sources: Mapping[Role, Source], keys: Sequence[Key], encoded: labels.Labels | None) -> Split:
    source = sources[keys[0][0]] if keys else next(iter(sources.values()))
    return Split(source, [index for _, index in keys], encoded)


def _grouped(splits: Mapping[str, Split], rows: int, where: str, findings: list[Finding]) -> dict[str, Samples]:
    """Join single samples to feeds of `rows`, where the model's batch axis is fixed to so many."""
    if rows == 1:
        return dict(splits)
    if len(splits["calibration"]) < rows:
        raise InputError(
            f"the model's batch axis is fixed to {rows}, there are {len(splits['calibration'])} calibration samples",
            where=where,
            remedy="Give more samples, or export the model with a dynamic batch axis or a batch of 1.",
        )
    left = sum(len(split) % rows for split in splits.values())
    findings.append(
        noted(
            "data-grouped",
            text=f"the model's batch axis is fixed to "
            f"{rows}: {rows} samples are one feed, {left} that fill none are left out",
        )
    )
    return {name: Grouped(split, rows) for name, split in splits.items()}


def _identity(split: Split) -> str:
    """Return the hex sha256 of a split: contents and labels, in order."""
    found = hashlib.sha256()
    for index, content in enumerate(split.content()):
        found.update(content)
        if split.labels is not None:
            label = np.asarray(split.labels[index])
            found.update(f"{label.dtype.str}{label.shape}".encode() + label.tobytes())
    return found.hexdigest()
