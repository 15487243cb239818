"""The files of an artifact beside its main graph."""

from __future__ import annotations

import shutil
from pathlib import Path

from edgekit.artifact import MAIN
from edgekit.graphs.edit import load_model
from edgekit.graphs.storage import is_external, reference_of, tensors_in


def copy_companions(source: Path, out: Path) -> None:
    """Copy what does not belong to `model.onnx` and its external data: tokenizers, licenses, other graphs."""
    own = {
        MAIN,
        *(reference_of(tensor).location for tensor in tensors_in(load_model(source / MAIN)) if is_external(tensor)),
    }
    for file in sorted(source.rglob("*")):
        relative = file.relative_to(source)
        if file.is_file() and relative.as_posix() not in own:
            (out / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, out / relative)
