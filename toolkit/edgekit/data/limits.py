"""How much a reader accepts. Data is the user's own, but a damaged or hostile file must not take the machine down."""

from __future__ import annotations

MAX_PIXELS = 1 << 26
"""Pixels of one image, read from its header before anything is decoded (67 million; 8192 x 8192)."""

MAX_IMAGE_BYTES = 256 << 20
"""Bytes of one image file."""

MAX_MEMBERS = 4096
"""Arrays in one `.npz`."""

MAX_HELD_BYTES = 4 << 30
"""Bytes of one compressed array, which must be held; uncompressed arrays are mapped and have no such limit."""

MAX_LINE_BYTES = 16 << 20
"""Bytes of one record of a CSV or JSONL file."""

MAX_TOKENIZER_BYTES = 128 << 20
"""Bytes of a `tokenizer.json`."""

MAX_CONFIG_BYTES = 1 << 20
"""Bytes of a `preprocessor_config.json`, a sidecar or a list of labels."""

MAX_SPOOL_BYTES = 32 << 30
"""Bytes that a factory's iterator may give: they are kept in a temporary file."""

BAD_SHARE = 0.05
"""Share of unreadable samples that is skipped with a warning; above it the data is refused."""

FEW_SAMPLES = 20
"""Below this many samples nothing is held out: all calibrate and accuracy stays unproven."""

CALIBRATION = 256
"""Calibration samples when none are asked for."""

NAMED = 20
"""Names that a finding or error spells out before it says how many more there are."""
