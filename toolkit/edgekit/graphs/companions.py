"""The files of an artifact beside its main graph."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from edgekit.artifact import MAIN
from edgekit.graphs.edit import load_model
from edgekit.graphs.storage import is_external, reference_of, tensors_in


def copy_companions(source: Path, out: Path, graphs: Iterable[str] = (MAIN,)) -> None:
    """Copy what does not belong to some graphs and their external data: tokenizers, licenses, other graphs.

    Args:
        source: the artifact's folder.
        out: the new one's.
        graphs: files of `source` that are written anew, by their path in it.
    """
    own = set(graphs)
    for graph in tuple(own):
        stored = (tensor for tensor in tensors_in(load_model(source / graph)) if is_external(tensor))
        own |= {(Path(graph).parent / reference_of(tensor).location).as_posix() for tensor in stored}
    for file in sorted(source.rglob("*")):
        relative = file.relative_to(source)
        if file.is_file() and relative.as_posix() not in own:
            (out / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, out / relative)
