"""Write a package and read it back: one archive that a device can run, and that shows every change.

The archive holds `manifest.json`, the payload it lists, `verdict.json` and `seal.json`, in this order; docs/package.md
is the format in full.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgekit import __version__
from edgekit.artifact import MAIN, Artifact
from edgekit.budget import Verdict
from edgekit.bundle import (
    Entry,
    Limits,
    Member,
    damaged,
    extract,
    member,
    open_archive,
    read_bundle,
    read_member,
    write_bundle,
)
from edgekit.data import Feed
from edgekit.errors import InputError, IntegrityError, UnsupportedError, UsageError
from edgekit.jobs import RUNNER_FILES, encode_feeds, encode_job
from edgekit.manifest import (
    FORMAT,
    MANIFEST,
    SEAL,
    STATEMENT,
    VERDICT,
    Golden,
    Manifest,
    PackedArtifact,
    PackedFile,
    PackedProfile,
    Reference,
    Role,
    Seal,
    Tolerance,
    Variant,
    VerdictRecord,
    decode_document,
    decode_seal,
    encode_document,
    payload_digest,
)
from edgekit.profile import Profile
from edgekit.signing import load_public_key, sign, signature_fault
from edgekit.target import Bundle

SUFFIX = ".edgekit"

_MAX_DOCUMENT = 64 << 20
_MAX_SEAL = 4096
