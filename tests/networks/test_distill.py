"""Distillation: layers matched, projections learned, the teacher run once, the student nearer to it."""

import numpy as np
import pytest
import torch

from edgekit import events
from edgekit.errors import InputError, UnsupportedError, UsageError
from edgekit.networks import teacher as teacher_module
from edgekit.networks.blends import blended, can_blend
from edgekit.networks.distill import distill
from edgekit.networks.features import Matching, pair_layers, width_axis
from edgekit.networks.feeds import Feeds, write_feeds
from edgekit.networks.finetune import finetune
from edgekit.networks.goal import Goal, make_goal
from edgekit.networks.intake import intake_torch
from edgekit.networks.losses import Task
from edgekit.networks.rebuild import rebuild
from edgekit.networks.record import changes_of, read_record
from edgekit.networks.teacher import open_teacher
from edgekit.networks.train import runner_of
from house import MemorySamples

NETS = """
import torch

def block(inputs, outputs):
    conv = torch.nn.Conv2d(inputs, outputs, 3, padding=1)
    return torch.nn.Sequential(conv, torch.nn.BatchNorm2d(outputs), torch.nn.ReLU())

class Net(torch.nn.Module):
    labels = ["zero", "one", "two"]

    def __init__(self, width, depth, seed, classes=3):
        super().__init__()
        torch.manual_seed(seed)
        rows = [block(1 if not index else width, width) for index in range(depth)]
        self.body = torch.nn.Sequential(*rows)
        self.head = torch.nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

    def example_inputs(self):
        return {"x": torch.zeros(1, 1, 8, 8)}

def teacher():
    net = Net(8, 4, 1)
    net.eval()
    with torch.no_grad():
        seen = net.body(torch.randn(64, 1, 8, 8) + torch.randn(64, 1, 1, 1)).mean((2, 3))
        net.head.weight.mul_(20)
        net.head.bias.copy_(-net.head.weight @ seen.mean(0))  # every class is given
    return net

def student():
    return Net(4, 2, 2)

def turned():
    net = teacher()
    net.labels = ["two", "zero", "one"]
    order = [2, 0, 1]
    with torch.no_grad():
        net.head.weight.copy_(net.head.weight[order].clone())
        net.head.bias.copy_(net.head.bias[order].clone())
    return net

def wide():
    net = Net(8, 4, 1, classes=5)
    net.labels = []
    return net
"""


def pictures(count, seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(count, 1, 8, 8)) + rng.normal(size=(count, 1, 1, 1))).astype(np.float32)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The artifacts of all networks, and training samples labeled by the teacher."""
    folder = tmp_path_factory.mktemp("distill")
    (folder / "nets_of_distill.py").write_text(NETS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("teacher", "student", "turned", "wide"):
            intake_torch(f"python:nets_of_distill:{name}", folder / name)
    x = pictures(160, 0)[:, None]
    network = rebuild(folder / "teacher")
    y = network.run({"x": torch.from_numpy(x[:, 0])})["output"].argmax(1).numpy()
    write_feeds(MemorySamples([{"x": row} for row in x], y), folder / "feeds", events.ignore)
    write_feeds(MemorySamples([{"x": row} for row in x]), folder / "unlabeled", events.ignore)
    return folder


def arguments(place, tmp_path, teacher="teacher", **changes):
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    labels = ["two", "zero", "one"] if teacher == "turned" else [] if teacher == "wide" else ["zero", "one", "two"]
    given = {
        "folder": str(place / teacher), "kind": "torch", "labels": labels, "shapes": {}, "dtypes": {},
        "cache": str(tmp_path / "cache" / teacher),
    }  # fmt: skip
    return {
        "folder": str(place / "student"), "out": str(out), "scratch": str(tmp_path / "scratch"),
        "feeds": str(place / "feeds"), "shapes": {}, "dtypes": {}, "threads": 1, "seed": 0, "turn": 0,
        "labels": ["zero", "one", "two"], "epochs": 6, "feature_epochs": 2, "batch": 16, "rate": 0.01, "patience": 6,
        "decay": 0.01, "alpha": 0.7, "temperature": 2.5, "layers": {}, "config": {}, "blend": False,
        "teacher": given, **changes,
    }  # fmt: skip


def agreement(place, folder):
    x = pictures(200, 1)
    mine, theirs = (
        rebuild(where).run({"x": torch.from_numpy(x)})["output"].argmax(1) for where in (folder, place / "teacher")
    )
    return float((mine == theirs).double().mean())


def test_a_student_learns_from_features_and_outputs(place, tmp_path):
    told = []
    facts = distill(arguments(place, tmp_path), told.append)
    assert facts["features"]["layers"] == [["body.0", "body.1"], ["body.1", "body.3"]]
    assert facts["features"]["projected"] == ["body.0", "body.1"]
    features = [row["held_out"] for row in facts["features"]["history"]]
    assert min(features) < features[0]
    held = [row["held_out"] for row in facts["training"]["history"]]
    assert min(held) < 0.9 * held[0]
    assert {"soft", "hard"} <= facts["training"]["history"][1].keys()
    assert agreement(place, tmp_path / "out") > agreement(place, place / "student")
    assert [change.kind for change in changes_of(read_record(tmp_path / "out"))] == ["weights"]
    labels = {event.label.split()[0] for event in told if isinstance(event, events.Progress)}
    assert labels == {"teacher", "features", "train"}


def test_the_order_of_the_teachers_classes_does_not_matter(place, tmp_path):
    """D01: a teacher whose outputs are in another order teaches the same."""
    plain = distill(arguments(place, tmp_path, epochs=2, feature_epochs=0), lambda _: None)
    turned = distill(
        arguments(place, tmp_path, "turned", epochs=2, feature_epochs=0, scratch=str(tmp_path / "other")),
        lambda _: None,
    )
    assert [f["rule"] for f in turned["findings"]] == ["label-order"]
    for row, other in zip(plain["training"]["history"], turned["training"]["history"], strict=True):
        assert row == pytest.approx(other, rel=1e-3)


def test_another_number_of_classes_is_refused(place, tmp_path):
    """D03."""
    with pytest.raises(InputError, match="teacher has 5 outputs, student 3; give --label-map"):
        distill(arguments(place, tmp_path, "wide"), lambda _: None)
    assert not list((tmp_path / "out").iterdir())


def test_the_teacher_runs_once(place, tmp_path, monkeypatch):
    runs = []
    real = teacher_module._torch_run

    def counted(network):
        run = real(network)
        return lambda feed: runs.append(len(feed["x"])) or run(feed)

    monkeypatch.setattr(teacher_module, "_torch_run", counted)
    feeds = Feeds(place / "feeds", seed=0, batch=16)
    given = arguments(place, tmp_path)["teacher"]
    first = open_teacher(given, feeds, lambda _: None)
    again = open_teacher(given, Feeds(place / "feeds", seed=5, batch=7), lambda _: None)
    assert sum(runs) == len(feeds)
    batch = feeds.load(feeds.epoch(1)[0])
    wanted = first.network.run({"x": torch.from_numpy(batch.feed["x"])})["output"]
    for teacher in (first, again):
        torch.testing.assert_close(teacher.outputs(batch)["output"], wanted)


def test_blends_are_taught_as_the_teacher_sees_them(place, tmp_path):
    """The loss against its definition: a share of each sample and of the one opposite, and the teacher's outputs."""
    feeds = Feeds(place / "feeds", seed=0, batch=16)
    runner = runner_of(rebuild(place / "student"))
    goal = make_goal(runner, feeds, arguments(place, tmp_path), lambda _: None)
    assert can_blend(goal, feeds)
    batch = feeds.load(feeds.epoch(1)[0])
    x = torch.from_numpy(batch.feed["x"])
    torch.manual_seed(3)
    terms = blended(goal)(runner, batch, {"x": x}, 0.0)
    torch.manual_seed(3)
    share = 0.5 + 0.5 * float(torch.rand(()))
    mixed = share * x + (1 - share) * x.flip(0)
    logits = runner({"x": mixed})["output"]
    wanted = rebuild(place / "teacher").run({"x": mixed})["output"]
    soft, own = ((value / 2.5).log_softmax(-1) for value in (wanted, logits))
    divergence = 0.7 * 2.5**2 * (soft.exp() * (soft - own)).sum(-1).mean()
    torch.testing.assert_close(terms["soft"], divergence)
    truth = torch.from_numpy(batch.labels)
    one, other = (torch.nn.functional.cross_entropy(logits, side) for side in (truth, truth.flip(0)))
    torch.testing.assert_close(terms["hard"], 0.3 * (share * one + (1 - share) * other))


def test_labels_are_blended_without_a_teacher(place, tmp_path):
    feeds = Feeds(place / "feeds", seed=0, batch=16)
    runner = runner_of(rebuild(place / "student"))
    goal = make_goal(runner, feeds, {**arguments(place, tmp_path), "teacher": None}, lambda _: None)
    batch = feeds.load(feeds.epoch(1)[0])
    x, truth = torch.from_numpy(batch.feed["x"]), torch.from_numpy(batch.labels)
    torch.manual_seed(3)
    terms = blended(goal)(runner, batch, {"x": x}, 0.0)
    torch.manual_seed(3)
    share = 0.5 + 0.5 * float(torch.rand(()))
    logits = runner({"x": share * x + (1 - share) * x.flip(0)})["output"]
    one, other = (torch.nn.functional.cross_entropy(logits, side) for side in (truth, truth.flip(0)))
    assert set(terms) == {"hard"}
    torch.testing.assert_close(terms["hard"], share * one + (1 - share) * other)


@pytest.mark.parametrize("feeds", ["feeds", "unlabeled"])
def test_a_student_learns_from_blends(place, tmp_path, feeds):
    options = {"blend": True, "feature_epochs": 0, "feeds": str(place / feeds)}
    facts = distill(arguments(place, tmp_path, **options), lambda _: None)
    assert facts["training"]["blended"]
    held = [row["held_out"] for row in facts["training"]["history"]]
    assert min(held) < 0.9 * held[0]
    assert agreement(place, tmp_path / "out") > agreement(place, place / "student")


def test_integers_and_values_are_not_blended(place, tmp_path):
    rng = np.random.default_rng(0)
    write_feeds(
        MemorySamples([{"x": rng.integers(0, 9, (1, 8))} for _ in range(40)]), tmp_path / "tokens", events.ignore
    )
    pixels = MemorySamples(
        [{"x": row} for row in pictures(40, 0)[:, None]], rng.normal(size=(40, 3)).astype(np.float32)
    )
    write_feeds(pixels, tmp_path / "values", events.ignore)
    plain = Goal(task=None, soft=None, teacher=None, alpha=1.0)
    assert not can_blend(plain, Feeds(tmp_path / "tokens", seed=0, batch=8))
    values = Goal(task=Task(output="output", kind="values"), soft=None, teacher=None, alpha=0.5)
    assert not can_blend(values, Feeds(tmp_path / "values", seed=0, batch=8))
    assert can_blend(plain, Feeds(tmp_path / "values", seed=0, batch=8))


def test_without_labels_only_the_teacher_counts(place, tmp_path):
    facts = distill(
        arguments(place, tmp_path, feeds=str(place / "unlabeled"), epochs=1, feature_epochs=0), lambda _: None
    )
    assert facts["training"]["goal"]["alpha"] == 1
    assert "hard" not in facts["training"]["history"][1]


def test_finetuning_needs_labels(place, tmp_path):
    given = arguments(place, tmp_path, feeds=str(place / "unlabeled"))
    with pytest.raises(UsageError, match="the data has no labels"):
        finetune({**given, "teacher": None}, lambda _: None)
    facts = finetune({**given, "feeds": str(place / "feeds"), "teacher": None, "epochs": 2}, lambda _: None)
    assert facts["training"]["goal"] == {"alpha": 0.0, "task": {"output": "output", "kind": "classes"}}
    assert not facts["training"]["blended"]


def test_finetuning_on_blends_learns_the_labels(place, tmp_path):
    given = {**arguments(place, tmp_path, blend=True), "teacher": None}
    facts = finetune(given, lambda _: None)["training"]
    assert facts["blended"]
    held = [row["held_out"] for row in facts["history"]]
    assert min(held) < 0.9 * held[0]
    assert agreement(place, tmp_path / "out") > agreement(place, place / "student")


def test_layers_that_are_named_must_be_there(place, tmp_path):
    with pytest.raises(UsageError, match=r"teacher has no module 'body\.9'"):
        distill(arguments(place, tmp_path, layers={"body.0": "body.9"}), lambda _: None)


def test_layers_are_spread_evenly_and_end_together():
    rows = [torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(count))) for count in (3, 12)]
    assert pair_layers(*rows, {}) == (("0", "3"), ("1", "7"), ("2", "11"))
    assert pair_layers(torch.nn.Linear(2, 2), rows[0], {}) == ()


@pytest.mark.parametrize(
    ("mine", "theirs", "axis"),
    [
        ((2, 3, 8, 8), (2, 5, 4, 4), 1),
        ((2, 7, 3), (2, 7, 5), 2),
        ((2, 3, 7), (2, 5, 7), 1),
        ((2, 3), (2, 9), 1),
        ((2, 3, 4), (2, 5, 6), None),
        ((2, 3), (2, 3, 1), None),
    ],
)
def test_the_axis_of_widths(mine, theirs, axis):
    assert width_axis(torch.zeros(mine), torch.zeros(theirs)) == axis


def test_equal_features_have_no_distance_and_no_projection():
    value = torch.randn(4, 6)
    matching = Matching((("a", "b"),), {"a": value}, {"b": value}, 0)
    assert not list(matching.projections.parameters())
    assert float(matching.loss({"a": value}, {"b": value})) == 0
    assert float(matching.loss({"a": 2 * value}, {"b": value})) == pytest.approx(1)


@pytest.mark.parametrize("shape", [(3, 8, 5, 5), (3, 7, 8), (20, 8)], ids=["map", "sequence", "vector"])
def test_projections_start_where_least_squares_puts_them(shape):
    """A teacher whose channels depend on those that the student kept is met before anything is trained."""
    axis = 1 if len(shape) == 4 else len(shape) - 1
    mine = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    mix = torch.randn(8, 11, generator=torch.Generator().manual_seed(1))
    theirs = (mine.movedim(axis, -1) @ mix + 1).movedim(-1, axis)
    matching = Matching((("a", "b"),), {"a": mine}, {"b": theirs}, 0)
    before = float(matching.loss({"a": mine}, {"b": theirs}).detach())
    matching.solve([({"a": mine}, {"b": theirs})] * 3)
    assert before > 0.3
    assert float(matching.loss({"a": mine}, {"b": theirs}).detach()) < 1e-3


def test_an_exported_program_is_finetuned_too(place, tmp_path):
    network = rebuild(place / "student")
    program = torch.export.export(
        network.module.eval(),
        (torch.zeros(2, 1, 8, 8),),
        dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=1024)},),
    )
    torch.export.save(program, tmp_path / "net.pt2")
    intake_torch(str(tmp_path / "net.pt2"), tmp_path / "program")
    given = {**arguments(place, tmp_path, folder=str(tmp_path / "program"), epochs=3), "teacher": None}
    facts = finetune(given, lambda _: None)
    held = [row["held_out"] for row in facts["training"]["history"]]
    assert min(held) < held[0]
    assert agreement(place, tmp_path / "out") > agreement(place, tmp_path / "program")


def test_a_batch_that_the_network_does_not_take_is_told(place, tmp_path):
    network = rebuild(place / "student")
    torch.export.save(torch.export.export(network.module.eval(), (torch.zeros(1, 1, 8, 8),)), tmp_path / "net.pt2")
    intake_torch(str(tmp_path / "net.pt2"), tmp_path / "program")
    given = {**arguments(place, tmp_path, folder=str(tmp_path / "program"), epochs=1), "teacher": None}
    with pytest.raises(InputError, match="does not take a batch of 16") as caught:
        finetune(given, lambda _: None)
    assert "`batch`" in caught.value.remedy
    assert finetune({**given, "batch": 1}, lambda _: None)["training"]["epochs"] == 1


def test_a_teacher_that_does_not_say_what_it_is_fed_with(place, tmp_path, monkeypatch):
    (tmp_path / "mute_of_distill.py").write_text(
        "import nets_of_distill\n\n"
        "def mute():\n    net = nets_of_distill.teacher()\n    net.example_inputs = None\n    return net\n"
    )
    (tmp_path / "nets_of_distill.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    intake_torch("python:mute_of_distill:mute", tmp_path / "mute")
    given = arguments(place, tmp_path)
    feeds = Feeds(place / "feeds", seed=0, batch=16)
    wanted = open_teacher(given["teacher"], feeds, lambda _: None)
    mute = {**given["teacher"], "folder": str(tmp_path / "mute"), "cache": str(tmp_path / "cache" / "mute")}
    found = open_teacher(mute, feeds, lambda _: None)
    batch = feeds.load(feeds.held[:4])
    torch.testing.assert_close(found.outputs(batch)["output"], wanted.outputs(batch)["output"])


# --- a student of the same family ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A tiny BERT classifier, and samples that it labels."""
    from torch_models import bert, saved

    folder = tmp_path_factory.mktemp("language")
    intake_torch(str(saved(bert(num_hidden_layers=4), folder / "hf")), folder / "teacher")
    ids = np.random.default_rng(0).integers(5, 90, (64, 1, 7))
    rows = [{"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": 0 * row} for row in ids]
    write_feeds(MemorySamples(rows), folder / "feeds", events.ignore)
    return folder


def test_a_smaller_configuration_is_a_student(language, tmp_path):
    given = arguments(language, tmp_path, labels=[], epochs=1, feature_epochs=1)
    given |= {"folder": str(language / "teacher"), "config": {"num_hidden_layers": 2, "intermediate_size": 16}}
    given["teacher"] |= {"labels": []}
    facts = distill(given, lambda _: None)
    blocks = [f"bert.encoder.layer.{number}" for number in range(4)]
    assert facts["features"]["layers"] == [[blocks[0], blocks[1]], [blocks[1], blocks[3]]]
    made = rebuild(tmp_path / "out").module
    assert (made.config.num_hidden_layers, made.config.intermediate_size) == (2, 16)
    assert made.bert.encoder.layer[1].intermediate.dense.weight.shape == (16, 32)


def test_a_student_takes_over_what_fits(language, tmp_path):
    from edgekit.networks.student import write_smaller

    (tmp_path / "same").mkdir()
    write_smaller(language / "teacher", tmp_path / "same", {"num_hidden_layers": 2}, 0)
    mine, theirs = rebuild(tmp_path / "same").module.state_dict(), rebuild(language / "teacher").module.state_dict()
    for name, value in mine.items():
        source = name.replace("layer.1.", "layer.3.").replace("layer.0.", "layer.1.")
        torch.testing.assert_close(value, theirs[source])
    with pytest.raises(UsageError, match="num_hiden_layers") as caught:
        write_smaller(language / "teacher", tmp_path / "none", {"num_hiden_layers": 2}, 0)
    assert "num_hidden_layers" in caught.value.remedy
    with pytest.raises(InputError, match="no such network"):
        write_smaller(language / "teacher", tmp_path / "none", {"num_attention_heads": 5}, 0)


def test_only_models_of_transformers_have_a_configuration(place, tmp_path):
    with pytest.raises(UnsupportedError, match="configuration"):
        distill(arguments(place, tmp_path, config={"num_hidden_layers": 1}), lambda _: None)


@pytest.mark.parametrize(("rows", "name"), [(1, "x"), (3, "image")])
def test_a_graph_of_a_fixed_batch_teaches_batch_by_batch(place, tmp_path, rows, name):
    import onnx
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    weight = rng.normal(size=(64, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Flatten", [name], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["output"]),
    ]
    shapes = ((name, [rows, 1, 8, 8]), ("output", [rows, 3]))
    value = [helper.make_tensor_value_info(key, 1, shape) for key, shape in shapes]
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array([rows, 3]), "shape")]
    model = helper.make_model(helper.make_graph(nodes, "g", value[:1], value[1:], constants), ir_version=9)
    model.opset_import[0].version = 17
    onnx.save(model, tmp_path / "model.onnx")
    feeds = Feeds(place / "feeds", seed=0, batch=16)
    given = {"folder": str(tmp_path), "kind": "onnx", "labels": [], "cache": str(tmp_path / "cache")}
    teacher = open_teacher(given, feeds, lambda _: None)
    batch = feeds.load(feeds.held[:5])
    wanted = batch.feed["x"].reshape(5, -1) @ weight
    np.testing.assert_allclose(teacher.outputs(batch)["output"].numpy(), wanted, rtol=1e-4, atol=1e-4)
