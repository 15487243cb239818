from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from samples import download
from samples.language import fetch, wordnet

ROW = '00001740 03 n 01 living_entity 0 003 ~ 00001930 n 0000 | that which is perceived; "it was an entity"; "so"  '


def test_a_row_becomes_word_and_definition() -> None:
    assert wordnet.definition(ROW) == "living entity: that which is perceived"


def test_every_noun_is_told_once_and_in_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["  1 This software and database is being provided", *(ROW.replace("living", f"w{i}") for i in range(50))]

    def place(_package: download.Package, folder: Path, _members: dict[str, str]) -> Path:
        (folder / "data.noun").write_text("\n".join(rows), encoding="ascii")
        return folder

    monkeypatch.setattr(wordnet, "unpack", place)
    found = wordnet.load()
    assert found == wordnet.load()
    assert sorted(found) == sorted(wordnet.definition(row) for row in rows[1:])
    assert found != sorted(found)


def test_contexts_do_not_overlap_and_have_the_token_behind_them() -> None:
    x, y = fetch.windows(np.arange(1000), 3)
    assert x.shape == (3, fetch.LENGTH)
    assert (y == x[:, -1] + 1).all()
    assert (x[1:, 0] == y[:-1] + 1).all()
