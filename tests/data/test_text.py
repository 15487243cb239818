"""Text: tables read record by record, a tokenizer file, and exactly the inputs that the model asks for."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from edgekit.artifact import TensorSpec
from edgekit.data import open_dataset, preprocess_one
from edgekit.data.tables import TextTable
from edgekit.errors import InputError, IntegrityError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "very", "a", "not"]


def spec(name: str, shape=("b", "s"), dtype: str = "int64") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


BERT = [spec("input_ids"), spec("attention_mask"), spec("token_type_ids")]


@pytest.fixture
def model(tmp_path):
    """A model folder with a tokenizer as transformers writes it: its own truncation and padding are overruled."""
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(12)
    tokenizer.enable_padding(length=12, pad_id=0)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 16, "pad_token": "[PAD]"}))
    return folder


def rules(dataset) -> dict[str, str]:
    return {finding.rule: finding.text for finding in dataset.findings}


def write_csv(path, rows) -> str:
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return str(path)


def test_a_csv_with_labels(tmp_path, model):
    rows = [
        ["label", "text"],
        *([["pos", f"good film {n}"] for n in range(15)] + [["neg", f"bad film {n}"] for n in range(15)]),
    ]
    found = open_dataset(write_csv(tmp_path / "a.csv", rows), BERT, processor=model)
    assert found.labels == ("neg", "pos")
    position = next(index for index, label in enumerate(found.evaluation.labels) if label == 1)
    feed = found.evaluation.sample(position)
    assert feed["input_ids"].tolist() == [[2, 4, 6, 1, 3]]
    assert feed["attention_mask"].tolist() == [[1] * 5]
    assert feed["token_type_ids"].tolist() == [[0] * 5]
    assert feed["input_ids"].dtype == np.int64
    assert rules(found)["text-max-length"].startswith("max_length 12 ")
    record = found.preprocessing["text"]
    assert (record["tokenizer"], record["max_length"], record["pad_id"]) == ("tokenizer.json", 12, 0)
    assert found.files["tokenizer.json"] == model / "tokenizer.json"


def test_pairs_and_only_the_inputs_that_are_asked(tmp_path, model):
    lines = [{"text": "good film", "text_pair": "a bad film", "label": 0.5 * n} for n in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    asked = [spec("input_ids", dtype="int32"), spec("segment_ids")]
    found = open_dataset(str(tmp_path / "a.jsonl"), asked, processor=model)
    feed = found.calibration.sample(0)
    assert set(feed) == {"input_ids", "segment_ids"}
    assert feed["input_ids"].dtype == np.int32
    assert feed["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert found.calibration.labels.tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_fixed_sequence_axis_is_padded_and_cut(tmp_path, model, side):
    asked = [spec(name, ("b", 6)) for name in ("input_ids", "attention_mask", "position_ids")]
    path = write_csv(tmp_path / "a.csv", [["text"], ["good film"], ["a very very very bad film"]])
    declared = {"kind": "text", "padding_side": side}
    found = open_dataset(path, asked, processor=model, preprocessing=declared)
    feed = found.calibration.sample(0)
    ids, mask, positions = (feed[name][0].tolist() for name in ("input_ids", "attention_mask", "position_ids"))
    assert ids == ([2, 4, 6, 3, 0, 0] if side == "right" else [0, 0, 2, 4, 6, 3])
    assert mask == ([1] * 4 + [0] * 2 if side == "right" else [0] * 2 + [1] * 4)
    assert [place for place, real in zip(positions, mask, strict=True) if real] == [0, 1, 2, 3]
    assert len(found.calibration.sample(1)["input_ids"][0]) == 6
    assert "1 of 2 samples" in rules(found)["text-cut"]
    assert "text-max-length" not in rules(found)


def test_declared_padding_makes_equal_lengths(tmp_path, model):
    path = write_csv(tmp_path / "a.csv", [["text"], ["good"], ["a very bad film"], ["film"]])
    found = open_dataset(
        path, BERT, processor=model, preprocessing={"kind": "text", "max_length": 8, "padding": "max-length"}
    )
    assert [batch["input_ids"].shape for batch in found.calibration.batches(4)] == [(3, 8)]
    found = open_dataset(path, BERT, processor=model)
    assert [batch["input_ids"].shape for batch in found.calibration.batches(4)] == [(1, 3), (1, 6), (1, 3)]


def test_what_is_recorded_redoes_it(tmp_path, model):
    path = write_csv(tmp_path / "a.csv", [["text", "text_pair"], ["good", "bad film"]])
    found = open_dataset(path, BERT, processor=model)
    wanted = found.calibration.sample(0)
    given = preprocess_one(("good", "bad film"), found.preprocessing, BERT, folder=model)
    assert {name: array.tolist() for name, array in given.items()} == {n: a.tolist() for n, a in wanted.items()}
    (tmp_path / "one.txt").write_text("good")
    one = preprocess_one(tmp_path / "one.txt", found.preprocessing, BERT, folder=model)
    assert (
        one["input_ids"].tolist()
        == preprocess_one("good", found.preprocessing, BERT, folder=model)["input_ids"].tolist()
    )
    text = (model / "tokenizer.json").read_text()
    (model / "tokenizer.json").write_text(text.replace('"good"', '"gold"'))
    with pytest.raises(IntegrityError):
        preprocess_one("good", found.preprocessing, BERT, folder=model)


def test_what_a_package_records_opens_the_same_data_set(tmp_path, model):
    path = write_csv(tmp_path / "a.csv", [["text", "label"], *([f"good film {n}", str(n % 2)] for n in range(30))])
    first = open_dataset(path, BERT, processor=model, limit=12)
    (tmp_path / "tokenizer.json").write_text("another one beside the data")
    carried = tmp_path / "package" / "preprocessing"
    carried.mkdir(parents=True)
    for name, file in first.files.items():
        (carried / name).write_bytes(file.read_bytes())
    again = open_dataset(path, BERT, preprocessing=first.preprocessing, processor=carried, limit=12)
    assert again.id == first.id


def test_the_tokenizer_may_lie_beside_the_data_or_be_declared(tmp_path, model):
    path = write_csv(tmp_path / "a.csv", [["review"], ["good"]])
    with pytest.raises(InputError, match="no column 'text'; there are 'review'"):
        open_dataset(path, BERT, processor=model)
    with pytest.raises(InputError, match="no tokenizer") as caught:
        open_dataset(path, BERT, preprocessing={"kind": "text", "columns": {"text": "review"}})
    assert "tokenizer.json" in caught.value.where
    declared = 'kind = "text"\ntokenizer = "model"\ncolumns = { text = "review" }\n'
    (tmp_path / "preprocessing.toml").write_text(declared)
    assert open_dataset(path, BERT).calibration.sample(0)["input_ids"].tolist() == [[2, 4, 3]]


def test_inputs_that_text_cannot_make_are_named(tmp_path, model):
    path = write_csv(tmp_path / "a.csv", [["text"], ["good"]])
    with pytest.raises(InputError, match="'pixel_values'") as caught:
        open_dataset(path, [*BERT, spec("pixel_values")], processor=model)
    assert 'inputs = { pixel_values = "ids" }' in caught.value.remedy
    declared = {"kind": "text", "inputs": {"tokens": "ids"}}
    found = open_dataset(path, [spec("tokens")], processor=model, preprocessing=declared)
    assert found.calibration.sample(0)["tokens"].tolist() == [[2, 4, 3]]


@pytest.mark.parametrize(
    ("declared", "asked", "words"),
    [
        ({"max_length": 9}, [spec("input_ids", ("b", 6))], "fixed to 6"),
        ({"max_length": 1}, BERT, "no room"),
        ({}, [spec("input_ids", ("b", 6)), spec("attention_mask", ("b", 7))], r"\[6, 7\]"),
        ({"columns": {"txt": "text"}}, BERT, "txt"),
    ],
)
def test_lengths_and_columns_that_cannot_be_are_refused(tmp_path, model, declared, asked, words):
    path = write_csv(tmp_path / "a.csv", [["text"], ["good film"]])
    with pytest.raises(InputError, match=words):
        open_dataset(path, asked, processor=model, preprocessing={"kind": "text", **declared})


def test_bad_records_are_named_and_counted(tmp_path, model):
    lines = [json.dumps({"text": f"film {n}"}) for n in range(58)]
    lines[3] = '{"text": '
    lines[7] = '{"text": 5}'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    told = rules(open_dataset(str(tmp_path / "a.jsonl"), BERT, processor=model))["data-bad-files"]
    assert "2 of 58" in told
    assert "a.jsonl[3]" in told
    assert "a.jsonl[7]" in told
    with pytest.raises(InputError, match=r"strict.*a\.jsonl\[3\]"):
        open_dataset(str(tmp_path / "a.jsonl"), BERT, processor=model, strict=True)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"", "no samples"), ("a.csv", b"text\n", "no samples"), ("a.jsonl", b"\n\n", "no samples"),
        ("a.csv", b"text\ngood \xff film\n", "UTF-8|utf-8"), ("a.csv", b'text\n"good\n', "not readable as CSV"),
        ("a.csv", b"text,label\ngood\n", "1 of 1 samples cannot be read"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "1 of 1 samples cannot be read"),
    ],
)  # fmt: skip
def test_damaged_tables_are_refused(tmp_path, model, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        open_dataset(str(tmp_path / name), BERT, processor=model)
    assert caught.value.remedy


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, model):
    (model / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(InputError, match="not a tokenizer file") as caught:
        open_dataset(write_csv(tmp_path / "a.csv", [["text"], ["good"]]), BERT, processor=model)
    assert "tokenizer.json" in caught.value.where


def test_tables_by_split_name(tmp_path, model):
    folder = tmp_path / "data"
    folder.mkdir()
    write_csv(folder / "train.csv", [["text", "label"], *([f"good {n}", "1"] for n in range(30))])
    write_csv(folder / "test.csv", [["text", "label"], *([f"bad {n}", "0"] for n in range(25))])
    found = open_dataset(str(folder), BERT, processor=model)
    assert (len(found.calibration), len(found.evaluation)) == (30, 25)  # "good 0" .. are distinct texts
    assert set(found.evaluation.labels) == {0}


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=20)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS), max_size=12), st.booleans())
def test_any_text_comes_back_from_any_place_of_a_table(tmp_path_factory, rows, bom):
    folder = tmp_path_factory.mktemp("t")
    write_csv(folder / "a.csv", [["text", "text_pair"], *rows])
    lines = "".join(json.dumps({"text": a, "text_pair": b}, ensure_ascii=False) + "\n" for a, b in rows)
    (folder / "a.jsonl").write_bytes((b"\xef\xbb\xbf" if bom else b"") + lines.encode())
    for name in ("a.csv", "a.jsonl"):
        table = TextTable(folder / name, name, {})
        assert len(table) == len(rows)
        for index in reversed(range(len(rows))):
            raw = table[index]
            assert (raw["text"], raw["text_pair"]) == rows[index]


def test_memory_does_not_grow_with_the_texts(tmp_path, model):
    def peak(length: int) -> int:
        path = tmp_path / f"{length}.jsonl"
        with path.open("w") as file:
            for index in range(200):
                file.write(json.dumps({"text": f"film {index} " + "good " * length}) + "\n")
        tracemalloc.start()
        found = open_dataset(str(path), BERT, processor=model)
        assert all(feed["input_ids"].shape == (1, 12) for feed in found.evaluation.batches(1))
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(10)
    small, large = peak(10), peak(4000)  # 4 MB more text
    assert large - small < 1 << 20
