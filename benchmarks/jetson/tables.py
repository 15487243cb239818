"""Make the operator tables of the networks whose latencies on Jetson are published.

    python benchmarks/jetson/tables.py

Each network is drawn from its paper (`yolo.py`, `mlperf.py`) with weights that are shapes only, counted exactly by
`edgekit.graphs.cost` and grouped into kernels as TensorRT fuses them by `edgekit.graphs.fusion`. A table holds one row
for each different kernel and how often it occurs; bytes are written as elements, because the same network runs in three
precisions.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # drawing.py
import mlperf
import yolo

from edgekit.graphs.cost import cost_of
from edgekit.graphs.fusion import TENSORRT, fuse
from edgekit.graphs.work import KINDS, work_of

TABLES = Path(__file__).parent / "tables"
COLUMNS = ("kind", "batch", "rows", "columns", "depth", "macs", "operations", "elements")
ELEMENT = 4
"""Bytes: the networks are drawn in float32."""

NETWORKS = {
    **{f"yolo11{scale}": (lambda scale=scale: yolo.yolo11(scale)) for scale in yolo.SCALES},
    "yolov8n": yolo.yolov8n,
    "resnet50-v1.5": mlperf.resnet50,
    "resnet50-v1.5-batch8": lambda: mlperf.resnet50(8),
    "retinanet-resnext50-fpn": mlperf.retinanet,
    "bert-large-squad-384": mlperf.bert_large,
}


def table_of(name: str) -> dict[str, object]:
    """Draw a network and count it."""
    with tempfile.TemporaryDirectory() as folder:
        pencil, outputs = NETWORKS[name]()
        cost = cost_of(pencil.save(Path(folder), outputs))
    work = work_of(fuse(cost, TENSORRT))
    rows: Counter[tuple[object, ...]] = Counter()
    for at in range(len(work)):
        sizes = (work.batch, work.rows, work.columns, work.depth, work.macs, work.operations)
        rows[KINDS[work.kind[at]], *(int(size[at]) for size in sizes), round(work.moved[at] / ELEMENT)] += 1
    return {
        "network": name,
        "macs": cost.macs,
        "parameters": cost.parameters,
        "columns": ["count", *COLUMNS],
        "kernels": [[count, *row] for row, count in rows.items()],
    }


def main() -> None:
    TABLES.mkdir(exist_ok=True)
    for name in NETWORKS:
        table = table_of(name)
        kernels = table.pop("kernels")
        lines = ",\n  ".join(json.dumps(row) for row in kernels)
        head = json.dumps(table, indent=1)[:-2]
        (TABLES / f"{name}.json").write_text(f'{head},\n "kernels": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
        print(f"{name:26} {2 * table['macs'] / 1e9:7.2f} GFLOP {table['parameters'] / 1e6:7.2f} M parameters")


if __name__ == "__main__":
    main()
