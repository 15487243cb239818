"""Fetch a model from the Hugging Face hub, or find it in the cache of the hub's client. Runs in a child process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from edgekit import events
from edgekit.errors import EdgekitError, InputError, TargetError
from edgekit.networks.child import Tell
from edgekit.networks.huggingface import KEPT

ENVIRONMENT = {
    "HF_HUB_DOWNLOAD_TIMEOUT": "10",  # seconds without a byte, not for the whole file
    "HF_HUB_ETAG_TIMEOUT": "5",
}
"""Variables that the client reads when it is imported: no call may hang."""

_TIMEOUT = 5.0
_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
_PATTERNS = [*KEPT, "README.md", "model*.safetensors", "model.safetensors.index.json"]


def is_hub_id(model: str) -> bool:
    """Say whether a MODEL reads like `owner/name` or `owner/name@revision`."""
    return _ID.fullmatch(model) is not None


def download(arguments: dict[str, Any], tell: Tell) -> dict[str, str]:
    """Bring `arguments["model"]` to the local cache; return its `folder`, `id` and `revision` (a commit).

    Raises:
        TargetError: the hub cannot be reached and the model is not in the cache.
        InputError: the hub has no such model, or does not give it to this user.
    """
    import huggingface_hub
    from huggingface_hub import errors

    match = _ID.fullmatch(arguments["model"])
    assert match is not None
    name, revision = match["id"], match["revision"]
    try:
        info = huggingface_hub.HfApi().model_info(name, revision=revision, timeout=_TIMEOUT)
        folder = huggingface_hub.snapshot_download(name, revision=info.sha, allow_patterns=_PATTERNS)
    except errors.GatedRepoError:
        raise InputError(
            "the hub gives this model only to users who accepted its terms",
            where=name,
            remedy="Accept the terms on its page and log in with `hf auth login`.",
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise InputError(
            "no such directory here, and no such model on the hub",
            where=arguments["model"],
            remedy="Check the name; private models need `hf auth login`.",
        ) from None
    except Exception as error:  # noqa: BLE001 - the client's transport errors share no base class across versions
        folder = _from_cache(name, revision, error)
        tell(events.Found(finding=_cached(name)))
    return {"folder": folder, "id": name, "revision": Path(folder).name}


def _from_cache(name: str, revision: str | None, cause: Exception) -> str:
    import huggingface_hub

    try:
        folder: str = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=_PATTERNS, local_files_only=True
        )
    except Exception:  # noqa: BLE001 - whatever is wrong with the cache, the model is not there
        raise _unreachable(name, cause) from None
    return folder


def _unreachable(name: str, cause: Exception) -> EdgekitError:
    return TargetError(
        f"no such directory here, and the hub cannot be reached ({type(cause).__name__}: {str(cause)[:200]})",
        where=name,
        remedy="Check the path, go online, or give the directory of a downloaded model.",
    )


def _cached(name: str) -> events.Finding:
    return events.Finding(
        severity="note",
        node=name,
        rule="hub-cache",
        text="the hub was not reached: the copy in the local cache is used",
    )
