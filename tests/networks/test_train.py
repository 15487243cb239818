"""The training loop and what it reads: seeded, resumed where it was killed, faults named."""

import json
import math

import numpy as np
import pytest
import torch

from edgekit import events
from edgekit.errors import InputError
from edgekit.networks.checkpoint import FILE, unique_state
from edgekit.networks.feeds import LEAST, Feeds, write_feeds
from edgekit.networks.finetune import schedule_of
from edgekit.networks.losses import find_task
from edgekit.networks.network import Network
from edgekit.networks.padding import Bucket, joined
from edgekit.networks.schedule import Fitted, Schedule, share_of_rate
from edgekit.networks.train import fit, outputs_of, runner_of
from house import MemorySamples


def samples(count=200, seed=0, **options):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 1, 6)).astype(np.float32)
    labels = (x[:, 0, 0] * x[:, 0, 1] > 0).astype(np.int64)
    return MemorySamples([{"x": row} for row in x], labels, **options)


def net(seed=0, **options):
    torch.manual_seed(seed)
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2)
    )
    return Network(module=module, examples={"x": torch.zeros(2, 6)}, call=lambda feed: module(feed["x"]), **options)


def hard(task):
    return lambda forward, batch, feed, _done: {"hard": task.loss(forward(feed), batch.labels)}


def trained(tmp_path, *, epochs=6, tell=lambda _event: None, network=None, name="run", batch=16, **options):
    network = network or net()
    feeds = Feeds(write_feeds(samples(), tmp_path / "feeds", events.ignore), seed=0, batch=batch)
    runner = runner_of(network)
    batch, outputs = next(iter(outputs_of(runner, feeds, feeds.held_out())))
    task = find_task(outputs, batch.labels)
    schedule = Schedule(epochs=epochs, rate=0.02, patience=epochs, **options)
    fitted = fit(runner, feeds, hard(task), schedule, scratch=tmp_path / name, tell=tell)
    return fitted, network.module.state_dict()


def same(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)


def test_training_lowers_the_held_out_loss_and_keeps_the_best_epoch(tmp_path):
    told = []
    fitted, _ = trained(tmp_path, tell=told.append)
    losses = [row["held_out"] for row in fitted.history]
    assert losses[fitted.best] == min(losses) < 0.9 * losses[0]
    assert len(losses) == 7
    assert {event.label for event in told} == {f"train {epoch}/6" for epoch in range(1, 7)}
    facts = fitted.facts()
    assert facts["epochs"] == 6
    json.dumps(facts)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    (_, first), (_, again), (_, other) = (
        trained(tmp_path, name=name, seed=seed, epochs=5) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert same(first, again)
    assert not same(first, other)


@pytest.mark.parametrize(("stop", "live"), [(1, False), (13, False), (40, False), (40, True)])
def test_a_killed_training_goes_on_and_ends_where_an_uninterrupted_one_does(tmp_path, stop, live):
    whole, wanted = trained(tmp_path, name="whole", epochs=5, live_norms=live)
    left = stop

    def kill(_event):
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, name="killed", epochs=5, tell=kill, live_norms=live)
    assert (tmp_path / "killed" / FILE).is_file()
    steps = []
    again, state = trained(tmp_path, name="killed", epochs=5, tell=steps.append, live_norms=live)
    assert len(steps) < 5 * 12 or stop == 1
    assert again.facts() == whole.facts()
    assert same(state, wanted)


def test_a_broken_checkpoint_is_no_checkpoint(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).write_bytes(b"half a file")
    _, state = trained(tmp_path, epochs=2)
    _, wanted = trained(tmp_path, epochs=2, name="other")
    assert same(state, wanted)


def test_it_stops_early_when_held_out_samples_gain_nothing(tmp_path):
    network = net()
    feeds = Feeds(write_feeds(samples(), tmp_path / "feeds", events.ignore), seed=0, batch=16)
    worse = iter(range(100))

    def judge(_forward, _batch, _feed, _done):
        return {"rising": torch.tensor(float(next(worse)))}

    def loss(forward, batch, feed, _done):
        return {"hard": torch.nn.functional.cross_entropy(forward(feed)["output"], torch.from_numpy(batch.labels))}

    before = {name: value.clone() for name, value in network.module.state_dict().items()}
    schedule = Schedule(epochs=50, rate=0.01, patience=2)
    fitted = fit(runner_of(network), feeds, loss, schedule, scratch=tmp_path / "s", tell=lambda _: None, judge=judge)
    assert (len(fitted.history), fitted.best) == (4, 0)
    assert same(network.module.state_dict(), before)


KNOWN = {"held_out": 0.04, "seen": 0.04}
"""The losses of a model that was trained on all of these samples before."""


@pytest.mark.parametrize(
    ("losses", "stuck"),
    [
        ([0.1, 0.7, 0.5, 0.3], False),  # away from the start, and on the way back
        ([0.1, 0.2, 0.3, 0.4], True),
        ([0.1, 0.2, 0.3], False),
        ([0.5, 0.2, 0.3, 0.1], False),
        ([0.5, 0.1, 0.2, 0.1], True),
    ],
)
def test_the_start_does_not_count_for_patience(losses, stuck):
    schedule = Schedule(epochs=9, rate=0.1, patience=2)
    assert Fitted(history=[{"held_out": loss} for loss in losses]).is_stuck(schedule) is stuck


@pytest.mark.parametrize(("epochs", "first"), [(0, 1), (1, 1), (2, 2), (3, 2), (6, 4), (10, 6)])
def test_epochs_at_a_high_rate_are_no_end_where_the_start_is_known(epochs, first):
    """Neither kept nor counted for patience: they are nearer to a start that knows the held-out samples."""
    schedule = Schedule(epochs=epochs, rate=0.1, patience=1, start_counts=False)
    assert schedule.first == first
    assert Schedule(epochs=epochs, rate=0.1).first == 1
    fitted = Fitted(history=[KNOWN])
    for epoch in range(1, epochs + 1):
        row = {"held_out": 0.1 + 0.01 * epoch, "seen": 0.04}
        assert fitted.add(row, schedule) is (epoch == first)
        assert fitted.is_stuck(schedule) is (epoch > first)
    assert fitted.best == (first if epochs else 0)


@pytest.mark.parametrize(
    ("epochs", "counts", "best", "harmed"),
    [
        ([{"held_out": 0.2}, {"held_out": 0.1}], True, 0, False),
        ([{"held_out": 0.2, "seen": 0.06}, {"held_out": 0.1, "seen": 0.05}], False, 2, False),
        ([{"held_out": 0.1, "seen": 0.05}, {"held_out": 0.2, "seen": 0.04}], False, 1, False),
        ([{"held_out": 2.0, "seen": 1.9}, {"held_out": 1.5, "seen": 1.5}], False, 2, True),
        ([{"held_out": 0.03, "seen": 0.09}], False, 1, False),
    ],
)
def test_a_start_that_knows_the_samples_does_not_compete(epochs, counts, best, harmed):
    fitted = Fitted(history=[KNOWN if not counts else {"held_out": 0.04}])
    for row in epochs:
        fitted.add(row, Schedule(epochs=1, rate=0.1, start_counts=counts))
    assert (fitted.best, fitted.harmed()) == (best, harmed)


def test_training_that_did_harm_leaves_the_model_as_it_was(tmp_path):
    """The best of the trained epochs, or what came in: to the bit, statistics of batch normalization included."""
    network = net()
    before = {name: value.clone() for name, value in network.module.state_dict().items()}
    held = iter([0.1, 0.1, 5.0, 5.0, 5.0])
    task = find_task({"output": torch.zeros(4, 2)}, np.zeros(4, np.int64))

    def judge(_forward, _batch, _feed, _done):
        return {"told": torch.tensor(next(held))}

    def loss(forward, batch, feed, _done):
        value = hard(task)(forward, batch, feed, _done)["hard"]
        return {"hard": value if torch.is_grad_enabled() else torch.full((), 5.0 if started else 0.1)}

    started = []
    feeds = Feeds(write_feeds(samples(), tmp_path / "feeds", events.ignore), seed=0, batch=200)
    schedule = Schedule(epochs=3, rate=0.01, start_counts=False, live_norms=True)
    fitted = fit(runner_of(network), feeds, loss, schedule, scratch=tmp_path / "s", tell=started.append, judge=judge)
    assert fitted.best == 0
    assert [row["seen"] for row in fitted.history][1:] == [5.0] * 3
    assert same(network.module.state_dict(), before)


def test_samples_that_are_seen_are_as_many_as_are_held_out_and_none_of_them(tmp_path):
    feeds = Feeds(write_feeds(samples(count=205), tmp_path / "feeds", events.ignore), seed=0, batch=16)
    held, seen = ({sample for batch in plan for sample in batch} for plan in (feeds.held_out(), feeds.seen()))
    assert len(held) == len(seen) == 20
    assert not held & seen


def test_every_turn_has_orders_of_its_own_and_the_same_samples_held_out(tmp_path):
    folder = write_feeds(samples(), tmp_path / "feeds", events.ignore)
    first, again, other = (Feeds(folder, seed=0, batch=16, turn=turn) for turn in (1, 1, 2))
    assert first.held == other.held
    assert first.epoch(1) == again.epoch(1) != other.epoch(1)


def test_of_many_samples_256_are_held_out(tmp_path):
    feeds = Feeds(write_feeds(samples(count=3000), tmp_path / "feeds", events.ignore), seed=0, batch=16)
    assert (len(feeds.held), len(feeds.trained)) == (256, 2744)


def test_the_rate_rises_and_falls_along_a_cosine():
    shares = [share_of_rate(done) for done in (0.05, 0.1, 0.55, 1.0)]
    assert shares == pytest.approx([0.5, 1.0, 0.5, 1e-3], abs=1e-3)


def test_a_loss_that_is_nan_names_the_module(tmp_path):
    network = net()

    class Breaks(torch.nn.Module):
        def forward(self, x):
            return x / 0.0 if self.training else x

    network.module[2] = Breaks()
    with pytest.raises(InputError, match=r"epoch 1, step 1: the loss is nan: the module '2'") as caught:
        trained(tmp_path, network=network)
    assert caught.value.where == "2"
    assert "rate" in caught.value.remedy


def test_a_gradient_that_is_nan_names_the_parameter(tmp_path):
    network = net()
    network.module[0].weight.register_hook(lambda grad: grad * math.nan)
    with pytest.raises(InputError, match=r"gradient of the parameter '0\.weight'"):
        trained(tmp_path, network=network)


def test_a_parameter_that_is_not_finite_is_named(tmp_path):
    network = net()
    with torch.no_grad():
        network.module[4].bias[0] = math.inf
    with pytest.raises(InputError, match=r"the parameter '4\.bias' is not finite"):
        trained(tmp_path, network=network)


def test_a_batch_of_one_value_a_channel_uses_running_statistics(tmp_path):
    fitted, _ = trained(tmp_path, batch=1, epochs=1, live_norms=True)
    assert len(fitted.history) == 2


def test_a_network_of_which_nothing_is_trained_is_refused(tmp_path):
    frozen = net()
    frozen.module.requires_grad_(requires_grad=False)
    with pytest.raises(InputError, match="no parameter of the network is trained"):
        trained(tmp_path, network=frozen, name="frozen")
    cut = net()
    cut.call = lambda feed: cut.module(feed["x"]).detach()
    with pytest.raises(InputError, match="depends on no parameter"):
        trained(tmp_path, network=cut, name="cut")


def test_too_few_samples_are_refused(tmp_path):
    with pytest.raises(InputError, match=f"{LEAST - 1} training samples are too few"):
        write_feeds(samples(LEAST - 1), tmp_path / "feeds", events.ignore)


def test_feeds_are_written_once_and_read_back_by_bucket(tmp_path):
    rng = np.random.default_rng(0)
    rows = [{"ids": rng.integers(0, 9, (1, 3 + index % 2))} for index in range(41)]
    folder = write_feeds(MemorySamples(rows, np.arange(41)), tmp_path / "feeds", events.ignore)
    stamp = (folder / "feeds.json").stat().st_mtime_ns
    assert write_feeds(MemorySamples(rows, np.arange(41)), folder, events.ignore) == folder
    assert (folder / "feeds.json").stat().st_mtime_ns == stamp
    feeds = Feeds(folder, seed=3, batch=4)
    seen = []
    for plan in (feeds.epoch(1), feeds.held_out()):
        for taken in plan:
            batch = feeds.load(taken)
            for row, label, index in zip(batch.feed["ids"], batch.labels, batch.indices, strict=True):
                np.testing.assert_array_equal(row, rows[index]["ids"][0])
                assert label == index
                seen.append(index)
    assert sorted(seen) == list(range(41))
    assert feeds.epoch(1) != feeds.epoch(2)
    assert min(len(taken) for taken in feeds.epoch(1)) > 1  # BatchNorm cannot train on one sample


def test_samples_of_several_rows_come_together(tmp_path):
    rows = [{"x": np.full((2, 3), index, np.float32)} for index in range(40)]
    given = MemorySamples(rows, np.arange(80).reshape(40, 2))
    given.joinable = False
    feeds = Feeds(write_feeds(given, tmp_path / "feeds", events.ignore), seed=0, batch=16)
    batch = feeds.load(feeds.epoch(1)[0])
    assert batch.feed["x"].shape == (2 * len(batch.indices), 3)
    assert batch.labels.tolist() == [2 * index + row for index in batch.indices for row in (0, 1)]


def test_norms_are_settled_first_and_held_while_training(tmp_path):
    """Running statistics that belong to another network (as after pruning) are estimated anew over the samples."""
    network = net()
    norm = network.module[1]
    with torch.no_grad():
        norm.running_mean.fill_(-40.0)
        norm.running_var.fill_(9.0)
    fitted, _ = trained(tmp_path, network=network, epochs=1, tell=lambda _event: None)
    first = fitted.history[0]
    assert first["held_out"] < first["before_norms"]
    feeds = Feeds(tmp_path / "feeds", seed=0, batch=16)
    fresh = net().module
    seen = torch.cat([fresh[0](torch.from_numpy(feeds.load(batch).feed["x"])) for batch in feeds.epoch(0)])
    state = {name: value for name, value in unique_state(network.module).items() if "running" in name}
    torch.testing.assert_close(state["1.running_mean"], seen.mean(0).detach(), rtol=0.05, atol=0.05)


def test_norms_of_large_batches_follow_what_is_trained(tmp_path):
    """A rate that moves the layer before: held statistics stay behind, live ones are those of its outputs."""
    found = {}
    for live in (False, True):
        network = net()
        trained(tmp_path, network=network, name=str(live), live_norms=live, epochs=4)
        feeds = Feeds(tmp_path / "feeds", seed=0, batch=16)
        with torch.no_grad():
            seen = torch.cat(
                [network.module[0](torch.from_numpy(feeds.load(batch).feed["x"])) for batch in feeds.epoch(0)]
            )
        found[live] = float((network.module[1].running_var / seen.var(0)).log().abs().mean())
    assert found[True] < 0.3 * found[False]


@pytest.mark.parametrize(("batch", "live"), [(15, False), (16, True)])
def test_only_large_batches_normalize_by_themselves(batch, live):
    arguments = {"epochs": 1, "rate": 0, "patience": 1, "decay": 0.0, "seed": 0, "batch": batch}
    schedule = schedule_of(arguments, net())
    assert schedule.live_norms is live
    assert schedule.rate == pytest.approx(1e-3)


def test_statistics_that_are_right_stay_as_they_are(tmp_path):
    network = net()
    norm = network.module[1]
    feeds = Feeds(write_feeds(samples(), tmp_path / "feeds", events.ignore), seed=0, batch=16)
    held = torch.cat([network.module[0](torch.from_numpy(feeds.load(batch).feed["x"])) for batch in feeds.held_out()])

    def judge(forward, batch, feed, _done):
        forward(feed)
        return {"away": ((norm.running_mean - held.mean(0).detach()) ** 2).sum()}

    norm.running_mean.copy_(held.mean(0).detach())
    before = [value.clone() for value in norm.buffers()]
    loss = hard(find_task({"output": torch.zeros(4, 2)}, np.zeros(4, np.int64)))
    schedule = Schedule(epochs=1, rate=0.01)
    fit(runner_of(network), feeds, loss, schedule, scratch=tmp_path / "s", tell=lambda _: None, judge=judge)
    assert all(torch.equal(old, new) for old, new in zip(before, norm.buffers(), strict=True))


def test_sequences_of_about_the_same_length_are_padded_and_come_together(tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 30, 60)
    rows = [
        {"input_ids": rng.integers(1, 90, (1, size)), "attention_mask": np.ones((1, size), np.int64)}
        for size in lengths
    ]
    feeds = Feeds(write_feeds(MemorySamples(rows, np.arange(60)), tmp_path / "feeds", events.ignore), seed=0, batch=8)
    assert len(feeds.counts) == 2
    seen = []
    for plan in (feeds.epoch(1), feeds.held_out()):
        for taken in plan:
            batch = feeds.load(taken)
            for ids, mask, index in zip(*batch.feed.values(), batch.indices, strict=True):
                size = lengths[index]
                np.testing.assert_array_equal(ids[:size], rows[index]["input_ids"][0])
                assert mask.sum() == size == mask[:size].sum()
                assert len(ids) == max(length for length in lengths if -(-length // 16) == -(-size // 16))
            seen += batch.indices
    assert sorted(seen) == list(range(60))
    assert max(len(taken) for taken in feeds.epoch(1)) == 8


def test_labels_of_tokens_are_padded_with_what_does_not_count(tmp_path):
    rows = [
        {"input_ids": np.full((1, 3 + i % 2), i), "attention_mask": np.ones((1, 3 + i % 2), int)} for i in range(40)
    ]
    folder = write_feeds(MemorySamples(rows), tmp_path / "feeds", events.ignore)
    made = joined(
        [
            Bucket({"attention_mask": np.ones((2, 1, size), int)}, np.full((2, size), 7), [size, size + 10])
            for size in (3, 5)
        ]
    )
    assert made[0].labels.tolist() == [[7, 7, 7, -100, -100]] * 2 + [[7] * 5] * 2
    assert made[0].indices == [3, 13, 5, 15]
    assert len(Feeds(folder, seed=0, batch=4).counts) == 1
