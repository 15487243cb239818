"""Plan and pipeline: checked chains, the cache, rounds and alternatives."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import pytest

import house
from edgekit import events
from edgekit.dialect import Dialect
from edgekit.errors import InputError, UnsupportedError, UsageError
from edgekit.housekeeping import prune
from edgekit.pipeline import Pipeline
from edgekit.plan import Given, make_plan
from edgekit.recipe import parse_recipe
from edgekit.score import Score
from edgekit.stage import STAGES
from edgekit.stage_runs import merge
from edgekit.store import Store

RAN: Counter[str] = Counter()
DIALECT = Dialect(
    name="test",
    activation="uint8",
    weight="int8",
    symmetric_activations=False,
    per_channel=True,
    quantize_bias=True,
)


@dataclass(frozen=True, kw_only=True)
class Shrink:
    """Drops the last `count` bytes of the model: enough to see sizes, keys and rounds."""

    count: int = 1
    coverage: float | None = None
    fail: bool = False

    name: ClassVar[str] = "shrink"
    revision: ClassVar[int] = 1
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "no-such-distribution")

    def run(self, inputs, out, context):
        RAN[self.name] += 1
        (context.scratch / "checkpoint").write_text("x")
        if self.fail:
            raise UnsupportedError("cannot shrink", where="node a", remedy="none")
        content = (inputs.folder / "model.onnx").read_bytes()
        (out / "model.onnx").write_bytes(content[: max(len(content) - self.count, 1)])
        facts = {"findings": [{"severity": "note", "node": "", "rule": "shrunk", "text": "t", "remedy": ""}]}
        if self.coverage is not None:
            facts["coverage"] = {"precision": "w8a8", "weights": self.coverage, "left_float": ["conv1"]}
        return facts


@dataclass(frozen=True, kw_only=True)
class Halve(Shrink):
    """Half precision, in name."""

    name: ClassVar[str] = "halve"
    precision: ClassVar[str] = "fp16"
    needs: ClassVar[frozenset[str]] = frozenset({"data"})


@dataclass(frozen=True, kw_only=True)
class ToTorch(Shrink):
    """Makes another kind."""

    name: ClassVar[str] = "to-torch"
    makes: ClassVar[str] = "torch"


@dataclass(frozen=True, kw_only=True)
class Prune(Shrink):
    """Drops a byte as long as there are more than `least`, and says so when there are not."""

    name: ClassVar[str] = "prune"
    least: int = 8

    def run(self, inputs, out, context):
        content = (inputs.folder / "model.onnx").read_bytes()
        if len(content) > self.least:
            return Shrink.run(self, inputs, out, context)
        (out / "model.onnx").write_bytes(content)
        return {"findings": [{"severity": "note", "node": "", "rule": "prune-nothing", "text": "t", "remedy": ""}]}


@pytest.fixture(autouse=True)
def stages(monkeypatch):
    RAN.clear()
    for cls in (Shrink, Halve, ToTorch, Prune):
        monkeypatch.setattr(sys.modules[__name__], cls.__name__, cls)
        monkeypatch.setitem(STAGES, cls.name, f"{__name__}:{cls.__name__}")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


@pytest.fixture
def exporter():
    return SimpleNamespace(name="test", prepare=lambda _profile: ())


def plan_of(text, exporter, **given):
    known = {"model": "m.onnx", "kind": "onnx", "data": True, "teacher": False, **given}
    profile = known.pop("profile", house.profile())
    return make_plan(parse_recipe(text, where="r", name="r"), profile, exporter, Given(**known))


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as store:
        yield store


def source(store, content=b"0123456789"):
    with store.staging() as out:
        (out / "model.onnx").write_bytes(content)
        return store.publish(out, "onnx", {"graphs": {}}, ())


def pipeline(store, **changes):
    return Pipeline(**{"store": store, "profile": house.profile(), "dialect": DIALECT, **changes})


def size_score(store, *, within=lambda _size: True, latency=lambda size: size):
    def score(artifact):
        size = len((store.folder(artifact.id) / "model.onnx").read_bytes())
        return Score(within=within(size), latency_ms=latency(size), size=size, drop=0.0)

    return score


def test_a_second_build_runs_nothing_and_one_option_redoes_what_follows(store, exporter):
    text = "[[stage]]\nuse='shrink'\ncount=2\n[[stage]]\nuse='shrink'\ncount=3\n"
    first = pipeline(store)
    made = first.run(plan_of(text, exporter), source(store), size_score(store))
    assert (store.folder(made.id) / "model.onnx").read_bytes() == b"01234"
    assert [step.options["count"] for step in made.lineage] == [2, 3]
    assert made.lineage[1].libraries["no-such-distribution"] == "absent"
    assert len(made.facts["findings"]) == 2
    assert RAN["shrink"] == 2

    second = pipeline(store)
    assert second.run(plan_of(text, exporter), source(store), size_score(store)) == made
    assert [run.cached for run in second.runs] == [True, True]
    assert RAN["shrink"] == 2

    pipeline(store).run(plan_of(text.replace("3", "4"), exporter), source(store), size_score(store))
    assert RAN["shrink"] == 3
    pipeline(store).run(plan_of(text.replace("2", "1"), exporter), source(store), size_score(store))
    assert RAN["shrink"] == 5


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"data": house.dataset([], name="other")},
        {"profile": house.profile(name="other")},
        {
            "dialect": Dialect(
                name="x",
                activation="int8",
                weight="int8",
                symmetric_activations=True,
                per_channel=True,
                quantize_bias=False,
            )
        },
    ],
)
def test_the_key_covers_everything_that_can_change_a_result(store, exporter, change):
    plan = plan_of("[[stage]]\nuse='shrink'", exporter)
    pipeline(store).run(plan, source(store), size_score(store))
    pipeline(store, **change).run(plan, source(store), size_score(store))
    pipeline(store).run(plan, source(store, b"another model"), size_score(store))
    assert RAN["shrink"] == 3


def test_threads_and_listeners_are_not_part_of_the_key(store, exporter):
    plan = plan_of("[[stage]]\nuse='shrink'", exporter)
    heard = []
    pipeline(store).run(plan, source(store), size_score(store))
    pipeline(store, threads=2, listen=heard.append).run(plan, source(store), size_score(store))
    assert RAN["shrink"] == 1
    assert [type(event) for event in heard] == [events.StageStarted, events.StageDone]
    assert heard[1].cached


def test_a_pruned_artifact_is_made_again(store, exporter):
    plan = plan_of("[[stage]]\nuse='shrink'", exporter)
    made = pipeline(store).run(plan, source(store), size_score(store))
    prune(store, max_bytes=0)
    assert pipeline(store).run(plan, source(store), size_score(store)) == made
    assert RAN["shrink"] == 2


def test_scratch_is_there_after_a_failure_and_gone_after_success(store, exporter):
    with pytest.raises(UnsupportedError):
        pipeline(store).run(plan_of("[[stage]]\nuse='shrink'\nfail=true", exporter), source(store), size_score(store))
    assert len(list((store.root / "scratch").glob("*/checkpoint"))) == 1
    pipeline(store).run(plan_of("[[stage]]\nuse='shrink'", exporter), source(store), size_score(store))
    assert len(list((store.root / "scratch").glob("*/checkpoint"))) == 1


def test_rounds_stop_at_the_budget_and_keep_the_last_good_one(store, exporter):
    plan = plan_of("[[repeat]]\nrounds=9\n[[repeat.stage]]\nuse='shrink'\ncount=3", exporter)
    pipe = pipeline(store)
    made = pipe.run(plan, source(store), size_score(store, within=lambda size: size >= 4))
    assert (store.folder(made.id) / "model.onnx").read_bytes() == b"0123"
    told = [run.facts for run in pipe.runs if run.name == "repeat"]
    assert [row["kept"] for row in told] == [True, True, False]


def test_a_round_that_makes_the_model_slower_is_undone(store, exporter):
    plan = plan_of("[[repeat]]\nrounds=9\n[[repeat.stage]]\nuse='shrink'", exporter)
    made = pipeline(store).run(plan, source(store), size_score(store, latency=lambda size: abs(size - 8) + 1.0))
    assert len((store.folder(made.id) / "model.onnx").read_bytes()) == 8


def test_rounds_of_pruning_end_when_nothing_more_goes(store, exporter):
    """What comes after pruning in a round would change the model on and on."""
    plan = plan_of("[[repeat]]\nrounds=9\n[[repeat.stage]]\nuse='prune'\n[[repeat.stage]]\nuse='shrink'", exporter)
    ran = pipeline(store)
    made = ran.run(plan, source(store), size_score(store))
    assert (store.folder(made.id) / "model.onnx").read_bytes() == b"01234567"
    assert [run.name for run in ran.runs] == ["prune", "shrink", "repeat", "prune", "repeat"]
    assert ran.runs[-1].facts["why"] == "nothing changed: the rounds end"


def test_rounds_end_when_nothing_changes(store, exporter):
    plan = plan_of("[[repeat]]\nrounds=50\n[[repeat.stage]]\nuse='shrink'\ncount=5", exporter)
    pipe = pipeline(store)
    pipe.run(plan, source(store), size_score(store))
    assert RAN["shrink"] == 3


CHOICE = """
[[choose]]
[[choose.option]]
name = "small"
[[choose.option.stage]]
use = "shrink"
count = 5
[[choose.option]]
name = "large"
[[choose.option.stage]]
use = "shrink"
count = 1
[[choose.option]]
name = "broken"
[[choose.option.stage]]
use = "shrink"
fail = true
"""


def test_the_best_alternative_within_the_budget_is_kept(store, exporter):
    pipe = pipeline(store)
    made = pipe.run(plan_of(CHOICE, exporter), source(store), size_score(store, within=lambda size: size > 6))
    assert len((store.folder(made.id) / "model.onnx").read_bytes()) == 9
    told = pipe.runs[-1].facts
    assert told["chosen"] == "large"
    assert "cannot shrink" in told["refused"]["broken"]
    made = pipeline(store).run(plan_of(CHOICE, exporter), source(store), size_score(store))
    assert len((store.folder(made.id) / "model.onnx").read_bytes()) == 5


def test_the_next_alternatives_come_in_order_and_go_the_rest_of_the_way(store, exporter):
    text = CHOICE + "[[choose.option]]\nname = 'slow'\n[[choose.option.stage]]\nuse = 'shrink'\ncount = 2\n"
    plan = plan_of(text + "[[stage]]\nuse = 'shrink'", exporter)
    pipe = pipeline(store)
    score = size_score(store, latency=lambda size: {5: 1.0, 9: 2.0, 8: 3.0}[size], within=lambda size: size != 8)
    found = [
        (way.names, len((store.folder(way.artifact.id) / "model.onnx").read_bytes()))
        for way in (pipe.candidates(plan, source(store), score))
    ]
    assert found == [(("small",), 4), (("large",), 8)]  # slow misses a budget: it is not tried
    told = [run.facts for run in pipe.runs if run.name == "choose"]
    assert [row["chosen"] for row in told] == ["small", "large"]
    assert told[0]["why"] == "the fastest that keeps the budgets on the calibration data"
    assert "small did not pass" in told[1]["why"]
    assert "small" not in told[1]["scores"]
    assert set(told[0]["refused"]) == {"broken"}
    assert set(told[1]["refused"]) == {"broken", "small"}


def test_where_all_miss_a_budget_there_is_one_candidate(store, exporter):
    pipe = pipeline(store)
    ways = list(
        pipe.candidates(plan_of(CHOICE, exporter), source(store), size_score(store, within=lambda _size: False))
    )
    assert [way.names for way in ways] == [("small",)]
    assert [run.facts["why"] for run in pipe.runs if run.name == "choose"] == [
        "none keeps the budgets on the calibration data; it is the fastest"
    ]


def test_choices_after_one_another_are_gone_through_from_the_last(store, exporter):
    second = CHOICE.replace("small", "tiny").replace("large", "big").replace("count = 5", "count = 2")
    plan = plan_of(CHOICE + second, exporter)
    ways = pipeline(store).candidates(plan, source(store), size_score(store))
    assert [way.names for way in ways] == [("small", "tiny"), ("small", "big"), ("large", "tiny"), ("large", "big")]


HALF_OR_NOT = """
[[choose]]
[[choose.option]]
name = "half"
[[choose.option.stage]]
use = "halve"
[[choose.option]]
name = "whole"
[[choose.option.stage]]
use = "shrink"
"""


def test_an_alternative_that_the_device_does_not_run_is_left_out_and_told(store, exporter):
    profile = house.profile(precisions=("fp32",))
    plan = plan_of(HALF_OR_NOT, exporter, profile=profile)
    assert "  not half: test-device does not run fp16" in plan.lines()
    pipe = pipeline(store, profile=profile)
    pipe.run(plan, source(store), size_score(store))
    assert pipe.runs[-1].facts["chosen"] == "whole"
    assert pipe.runs[-1].facts["refused"] == {"half": "test-device does not run fp16"}
    assert RAN == {"shrink": 1}
    with pytest.raises(UnsupportedError, match=r"half: .*fp16"):
        plan_of(HALF_OR_NOT.split('[[choose.option]]\nname = "whole"', maxsplit=1)[0], exporter, profile=profile)


def test_no_alternative_at_all_is_unsupported(store, exporter):
    text = "[[choose]]\n[[choose.option]]\nname='b'\n[[choose.option.stage]]\nuse='shrink'\nfail=true"
    with pytest.raises(UnsupportedError, match="no alternative"):
        pipeline(store).run(plan_of(text, exporter), source(store), size_score(store))


def test_partial_coverage_is_refused_unless_allowed_and_also_from_the_cache(store, exporter):
    plan = plan_of("[[stage]]\nuse='shrink'\ncoverage=0.4", exporter)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"40% .*conv1"):
            pipeline(store).run(plan, source(store), size_score(store))
    pipeline(store, allow_partial=True).run(plan, source(store), size_score(store))
    assert RAN["shrink"] == 1


TWO_KINDS = """
[[choose]]
[[choose.option]]
[[choose.option.stage]]
use = "shrink"
[[choose.option]]
[[choose.option.stage]]
use = "to-torch"
"""


@pytest.mark.parametrize(
    ("text", "given", "error", "words"),
    [
        ("[[stage]]\nuse='shrinc'", {}, UsageError, "shrink"),
        ("[[stage]]\nuse='shrink'\ncuont=1", {}, UsageError, "count"),
        ("[[stage]]\nuse='shrink'\ncount='one'", {}, UsageError, "count"),
        ("[[stage]]\nuse='halve'", {"data": False}, UsageError, "--data"),
        ("[[stage]]\nuse='halve'", {"profile": house.profile(precisions=("fp32",))}, UnsupportedError, "fp16"),
        ("[[stage]]\nuse='to-torch'", {}, InputError, "exporters take 'onnx'"),
        ("[[stage]]\nuse='to-torch'\n[[stage]]\nuse='shrink'", {}, InputError, "takes onnx"),
        ("[[stage]]\nuse='shrink'", {"profile": house.profile(abstract=True)}, UsageError, "base"),
        (
            TWO_KINDS,
            {},
            InputError,
            "different kinds",
        ),
    ],
)
def test_a_plan_that_cannot_work_is_refused_before_work(exporter, text, given, error, words):
    with pytest.raises(error, match=words):
        plan_of(text, exporter, **given)
    assert not RAN


def test_findings_add_up():
    assert merge({"findings": [1], "a": 1}, {"findings": [2], "a": 2}) == {"findings": [1, 2], "a": 2}


# --- stages on models of PyTorch -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Train(Shrink):
    """Works on networks, with a teacher and samples to train on."""

    name: ClassVar[str] = "train"
    takes: ClassVar[frozenset[str]] = frozenset({"torch"})
    makes: ClassVar[str] = "torch"
    needs: ClassVar[frozenset[str]] = frozenset({"data", "training", "original"})

    shapes: dict[str, list[int | str]] = field(default_factory=dict)

    def run(self, inputs, out, context):
        TAUGHT.append(inputs.teacher[0])
        assert context.shared.is_dir()
        return super().run(inputs, out, context)


@dataclass(frozen=True, kw_only=True)
class Export(Shrink):
    """Stands for the capture."""

    count: int = 0
    shapes: dict[str, list[int | str]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    name: ClassVar[str] = "capture"
    takes: ClassVar[frozenset[str]] = frozenset({"torch"})


TAUGHT = []
ROUNDS = '[[repeat]]\nrounds = 5\n[[repeat.stage]]\nuse = "train"\n[[stage]]\nuse = "shrink"\n'


@pytest.fixture
def networks(monkeypatch):
    TAUGHT.clear()
    monkeypatch.setattr(Pipeline, "_check_axes", lambda _self, _reference: None)
    for cls in (Train, Export):
        monkeypatch.setitem(STAGES, cls.name, f"{__name__}:{cls.__name__}")


def network(store, content=b"0123456789"):
    with store.staging() as out:
        (out / "model.onnx").write_bytes(content)
        return store.publish(out, "torch", {"graphs": {}}, ())


def test_stages_on_networks_run_before_the_capture_and_it_runs_again(store, exporter, networks):
    plan = plan_of(ROUNDS, exporter, kind="torch", model="python:a:b", shapes=("x=1x3",))
    assert plan.trains
    assert [line.partition("(")[0].strip() for line in plan.lines()] == [
        "capture", "freeze-shapes", "up to 5 rounds of:", "train", "capture", "freeze-shapes", "shrink",
    ]  # fmt: skip
    assert plan.training[0].body[0].shapes == {"x": [1, 3]}
    assert not plan_of('[[stage]]\nuse = "shrink"', exporter, kind="torch", model="python:a:b").trains


def test_rounds_on_networks_are_judged_by_their_graph_and_rolled_back(store, exporter, networks):
    plan = plan_of(ROUNDS, exporter, kind="torch", model="python:a:b")
    line, given = pipeline(store, data=house.dataset([{}, {}])), network(store)
    reference = line.capture(plan, given)
    assert reference.kind == "onnx"
    seen = []

    def score(artifact):
        seen.append(artifact.kind)
        return size_score(store, within=lambda size: size > 7)(artifact)

    made = line.run(plan, reference, score)
    assert set(seen) == {"onnx"}
    assert (made.kind, len((store.folder(made.id) / "model.onnx").read_bytes())) == ("onnx", 7)  # 8, then shrunk
    assert [run.facts["kept"] for run in line.runs if run.name == "repeat"] == [True, True, False]
    assert {teacher.id for teacher in TAUGHT} == {given.id}


def test_a_round_that_is_still_too_slow_goes_on_as_long_as_accuracy_is_kept(store, exporter, networks):
    """Missing a budget of time or size is why there are rounds; missing that of accuracy ends them."""
    plan = plan_of(ROUNDS, exporter, kind="torch", model="python:a:b")
    line = pipeline(store, data=house.dataset([{}, {}]))
    reference = line.capture(plan, network(store))

    def score(artifact):
        size = len((store.folder(artifact.id) / "model.onnx").read_bytes())
        return Score(within=size < 6, latency_ms=size, size=size, drop=0.0, keeps=size > 6)

    line.run(plan, reference, score)
    assert [run.facts["kept"] for run in line.runs if run.name == "repeat"] == [True, True, True, False]


def test_the_users_teacher_counts_and_belongs_to_the_key_of_what_it_teaches(store, exporter, networks):
    plan = plan_of('[[stage]]\nuse = "train"\n[[stage]]\nuse = "shrink"\n', exporter, kind="torch", model="python:a:b")
    teacher, given, data = network(store, b"teacher"), network(store), house.dataset([{}, {}])
    for taught in (teacher, None, teacher):
        line = pipeline(store, data=data, teacher=taught)
        line.run(plan, line.capture(plan, given), size_score(store))
    assert [found.id for found in TAUGHT] == [teacher.id, given.id]
    assert RAN["train"] == 2


def test_a_graph_cannot_be_trained_as_a_network(exporter, networks):
    with pytest.raises(InputError, match="takes torch, but gets 'onnx'") as caught:
        plan_of(ROUNDS, exporter)
    assert "PyTorch" in caught.value.remedy
