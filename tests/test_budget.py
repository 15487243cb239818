import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.budget import Budget, Figure, dominated, judge, merge, parse_budget
from edgekit.errors import UsageError


def figure(name, value, low=None, high=None, **more):
    units = {"drop": "1", "size": "B", "memory": "B", "energy": "mJ"}
    more = {"unit": units.get(name, "ms"), "provenance": "measured", "on": "orin", "n": 1000} | more
    return Figure(name=name, value=value, low=low, high=high, **more)


def status(budget, *figures):
    return judge(budget, figures).checks[0].status


@pytest.mark.parametrize(("name", "word", "field", "expected"), [
    ("max-drop", "1%", "max_drop", 0.01),
    ("max-drop", "0.5 %", "max_drop", 0.005),
    ("max-drop", "0.01", "max_drop", 0.01),
    ("max-drop", ".01", "max_drop", 0.01),
    ("max-drop", "0", "max_drop", 0.0),
    ("max-drop", "150%", "max_drop", 1.5),
    ("max-size", "5MB", "max_size", 5_000_000),
    ("max-size", "1kB", "max_size", 1000),
    ("max-size", "1.1KB", "max_size", 1100),
    ("max-size", "12345", "max_size", 12345),
    ("max-size", "2 GiB", "max_size", 2 * 1024**3),
    ("max-memory", "200MiB", "max_memory", 200 * 1024**2),
    ("max-memory", "7B", "max_memory", 7),
    ("energy", "50mJ", "energy_mj", 50.0),
    ("energy", "0.1J", "energy_mj", 100.0),
    ("energy", "300uJ", "energy_mj", 0.3),
])  # fmt: skip
def test_words(name, word, field, expected):
    assert getattr(parse_budget({name: word}), field) == expected


@pytest.mark.parametrize(("word", "expected"), [
    ("20ms", 20), ("1.5 s", 1500), ("300us", 0.3), ("300\N{MICRO SIGN}s", 0.3), ("1e3us", 1), (" 7ms ", 7),
])  # fmt: skip
@pytest.mark.parametrize("percentile", ["p50", "p90", "p95", "p99"])
def test_latency_words(percentile, word, expected):
    assert parse_budget({f"latency-{percentile}": word}) == Budget(latency_ms={percentile: expected})


@pytest.mark.parametrize(("name", "word", "what"), [
    ("max-drop", "one percent", "is no quantity"),
    ("max-drop", "1", "would allow the model to lose everything"),
    ("max-drop", "0.5pt", "has the unknown unit 'pt'"),
    ("max-drop", "-1%", "is negative"),
    ("max-drop", "nan", "is no quantity"),
    ("max-drop", "inf", "is no quantity"),
    ("max-drop", "", "is no quantity"),
    ("max-drop", "1e300", "is beyond any device"),
    ("max-drop", "1%%", "has the unknown unit '%%'"),
    ("max-drop", True, "is no quantity"),
    ("max-drop", ["1%"], "is no quantity"),
    ("latency-p95", "20", "lacks its unit"),
    ("latency-p95", "0ms", "is not above 0"),
    ("latency-p95", "-3ms", "is not above 0"),
    ("latency-p95", "20 min", "has the unknown unit 'min'"),
    ("latency-p95", "1,5 s", "is no quantity"),
    ("latency-p95", "20ms30", "is no quantity"),
    ("latency-p95", "٣ms", "is no quantity"),
    ("max-size", "5 megabytes", "has the unknown unit 'megabytes'"),
    ("max-size", "0", "is not above 0"),
    ("max-size", "0.2B", "is less than a byte"),
    ("max-memory", "5PB", "has the unknown unit 'pb'"),
    ("energy", "50 MJ", "has the unknown unit 'MJ'"),
    ("energy", "0J", "is not above 0"),
])  # fmt: skip
def test_wrong_words_name_the_option_and_an_example(name, word, what):
    with pytest.raises(UsageError) as caught:
        parse_budget({name: word})
    assert what in caught.value.text
    assert caught.value.where == name
    assert caught.value.remedy.startswith(f"Write for example {name} ")
    assert parse_budget({name: caught.value.remedy.split()[-1].rstrip(".")}) != Budget()


def test_an_unknown_budget_gets_a_suggestion():
    with pytest.raises(UsageError, match="unknown budget 'latency-p59'") as caught:
        parse_budget({"latency-p59": "20ms"})
    assert "'latency-p95'" in caught.value.remedy


def test_numbers_of_a_toml_file_are_words_too():
    assert parse_budget({"max-size": 12345, "max-drop": 0.01}) == Budget(max_size=12345, max_drop=0.01)


@given(
    st.dictionaries(st.sampled_from(["max-drop", "latency-p95", "max-size", "energy", "other"]), st.text(max_size=8))
)
def test_any_words_are_read_or_refused(words):
    try:
        budget = parse_budget(words)
    except UsageError as refusal:
        said = str(refusal)
    else:
        said = repr(budget)
    assert said.startswith(("Budget(", "unknown budget", *words))


@pytest.mark.parametrize("fields", [
    {"max_drop": -0.1}, {"max_drop": math.nan}, {"max_size": 0}, {"max_memory": -1}, {"energy_mj": math.nan},
    {"latency_ms": {"p95": 0}}, {"latency_ms": {"p42": 1}},
])  # fmt: skip
def test_a_senseless_budget_cannot_be_made_in_python_either(fields):
    with pytest.raises(UsageError):
        Budget(**fields)


def test_later_budgets_win_axis_by_axis():
    profile = Budget(max_drop=0.02, latency_ms={"p50": 10, "p95": 20}, max_size=5)
    file = Budget(max_drop=0.0, latency_ms={"p95": 15})
    flags = Budget(energy_mj=3, max_size=7)
    assert merge(profile, file, flags) == Budget(
        max_drop=0.0, latency_ms={"p50": 10, "p95": 15}, max_size=7, energy_mj=3
    )
    assert merge() == Budget()
    assert profile.latency_ms == {"p50": 10, "p95": 20}


@pytest.mark.parametrize(("value", "low", "high", "n", "expected"), [
    (0.004, 0.001, 0.01, 5000, "pass"),
    (-0.2, -0.3, -0.1, 50, "pass"),
    (0.004, -0.01, 0.0100001, 5000, "unproven"),
    (0.0, -0.058, 0.058, 50, "unproven"),
    (0.05, 0.01, 0.09, 50, "unproven"),
    (0.05, 0.0100001, 0.09, 50, "fail"),
    (0.0, None, None, 5000, "unproven"),
    (0.0, -0.1, math.inf, 50, "unproven"),
    (0.0, -0.1, math.nan, 50, "unproven"),
    (0.0, 0.0, 0.0, 0, "unproven"),
    (None, None, None, 0, "unproven"),
    (math.nan, None, None, 500, "fail"),
    (math.nan, None, None, 0, "fail"),
    (math.inf, None, None, 500, "fail"),
])  # fmt: skip
def test_the_drop_decides_by_its_bounds(value, low, high, n, expected):
    verdict = judge(Budget(max_drop=0.01), [figure("drop", value, low, high, n=n)])
    assert verdict.status == verdict.checks[0].status == expected
    assert verdict.checks[0].budget == 0.01
    assert verdict.checks[0].reason


@pytest.mark.parametrize(("name", "more", "low", "high", "expected"), [
    ("p95", {}, 18, 19.9, "pass"),
    ("p95", {}, 20.1, 22, "fail"),
    ("p95", {}, 19, 21, "unproven"),
    ("p95", {}, None, None, "pass"),
    ("p95", {"value": 20.5}, None, None, "fail"),
    ("p95", {"n": 99}, 18, 19.9, "unproven"),
    ("p95", {"n": 100}, 18, 19.9, "pass"),
    ("p50", {"n": 99}, None, None, "unproven"),
    ("p99", {"n": 299}, 18, 19.9, "unproven"),
    ("p99", {"n": 300}, 18, 19.9, "pass"),
    ("p99", {"n": 300}, 18, math.inf, "unproven"),
    ("p95", {"provenance": "simulated"}, 1, 2, "unproven"),
    ("p95", {"provenance": "simulated"}, 100, 200, "unproven"),
    ("p95", {"provenance": "simulated", "value": math.nan}, None, None, "unproven"),
    ("p95", {"provenance": "predicted", "n": 0}, 5, 19, "pass"),
    ("p95", {"provenance": "predicted", "n": 0}, 21, 90, "fail"),
    ("p95", {"provenance": "predicted", "n": 0}, 5, 90, "unproven"),
    ("p95", {"provenance": "predicted", "n": 0}, None, None, "unproven"),
    ("p95", {"note": "the emulator's timing means nothing"}, 1, 2, "unproven"),
    ("p95", {"value": math.nan}, None, None, "fail"),
    ("p95", {"value": None}, None, None, "unproven"),
])  # fmt: skip
def test_latency(name, more, low, high, expected):
    found = figure(f"latency-{name}", **({"value": 19.0} | more), low=low, high=high)
    assert status(Budget(latency_ms={name: 20}), found) == expected


def test_a_note_is_the_reason():
    note = "the emulator's timing means nothing"
    assert judge(Budget(latency_ms={"p95": 20}), [figure("latency-p95", 5.0, 4, 6, note=note)]).checks[0].reason == note
    nothing = figure("drop", math.nan, note="the original scores 0")
    assert "the original scores 0" in judge(Budget(max_drop=0.01), [nothing]).checks[0].reason


@pytest.mark.parametrize(("name", "budget", "keeps", "misses"), [
    ("size", Budget(max_size=1000), 1000, 1001),
    ("memory", Budget(max_memory=1000), 1000, 1001),
    ("energy", Budget(energy_mj=1000), 1000, 1000.1),
])  # fmt: skip
def test_sizes_are_exact(name, budget, keeps, misses):
    assert status(budget, figure(name, keeps)) == "pass"
    assert status(budget, figure(name, misses)) == "fail"
    assert status(budget, figure(name, keeps, provenance="predicted")) == "unproven"
    assert status(budget, figure(name, keeps, 900, 990, provenance="predicted")) == "pass"
    simulated = status(budget, figure(name, keeps, provenance="simulated"))
    assert simulated == ("unproven" if name == "energy" else "pass")


def test_a_budget_without_a_figure_is_unproven():
    verdict = judge(Budget(max_memory=5), [figure("size", 1)])
    assert verdict.status == "unproven"
    assert verdict.checks[0].name == "memory"
    assert verdict.checks[0].reason.startswith("nothing measured: ")
    assert verdict.checks[0].value is None


def test_what_is_only_reported_never_turns_the_verdict():
    verdict = judge(Budget(), [figure("drop", math.nan), figure("latency-p99", None, note="no device"), figure("x", 1)])
    assert verdict.status == "pass"
    assert [check.status for check in verdict.checks] == ["pass"] * 3
    assert [check.budget for check in verdict.checks] == [None] * 3
    assert verdict.checks[1].reason == "reported only: no device"


def test_the_worst_check_is_the_verdict_and_the_order_is_fixed():
    figures = [
        figure("accuracy", 0.9),
        figure("size", 5),
        figure("latency-p95", 30.0, 29, 31),
        figure("latency-p50", 9.0, 8, 9.5),
        figure("drop", 0.0, -0.1, 0.1),
    ]
    budget = Budget(max_size=10, latency_ms={"p95": 20, "p50": 10}, max_drop=0.01)
    verdict = judge(budget, figures)
    assert [check.name for check in verdict.checks] == [
        "drop",
        "latency-p50",
        "latency-p95",
        "size",
        "accuracy",
    ]
    assert [check.status for check in verdict.checks] == ["unproven", "pass", "fail", "pass", "pass"]
    assert verdict.status == "fail"
    assert judge(budget, figures[::-1]).checks == verdict.checks
    assert judge(Budget(max_size=10, max_drop=0.01), figures).status == "unproven"
    assert msgspec.json.decode(msgspec.json.encode(verdict))["status"] == "fail"


def test_the_figure_that_can_decide_is_taken():
    predicted = figure("latency-p95", 5.0, 4, 6, provenance="predicted", n=0)
    simulated = figure("latency-p95", 1.0, provenance="simulated")
    measured = figure("latency-p95", 30.0, 29, 31)
    emulated = figure("latency-p95", 900.0, 800, 999, note="emulated")
    budget = Budget(latency_ms={"p95": 20})
    assert judge(budget, [simulated, predicted, measured]).status == "fail"
    assert judge(budget, [simulated, predicted, measured]).checks[1:] == judge(Budget(), [simulated, predicted]).checks
    assert judge(budget, [emulated, simulated, predicted]).status == "pass"
    assert judge(budget, [simulated]).status == "unproven"


NUMBERS = st.none() | st.floats()


@given(
    st.sampled_from(["drop", "latency-p95", "size", "memory", "energy"]),
    NUMBERS, NUMBERS, NUMBERS, st.integers(0, 1000), st.sampled_from(["measured", "simulated", "predicted"]),
)  # fmt: skip
def test_nothing_but_proof_passes(name, value, low, high, n, provenance):
    budget = Budget(max_drop=0.5, latency_ms={"p95": 5}, max_size=100, max_memory=100, energy_mj=7)
    found = figure(name, value, low, high, n=n, provenance=provenance)
    check = next(check for check in judge(budget, [found]).checks if check.name == name)
    assert check.reason
    if check.status == "pass":
        assert math.isfinite(value)
        assert (high is None and value <= check.budget) or high <= check.budget
        assert not (provenance == "simulated" and name in ("latency-p95", "energy"))
    if check.status == "fail" and math.isfinite(value):
        assert (low is None and value > check.budget) or low > check.budget


WORSE = [figure("drop", 0.1, 0.05, 0.15), figure("latency-p50", 12.0, 11.9, 12.1), figure("size", 101)]
INPUT = [figure("latency-p50", 10.0, 9.9, 10.1), figure("size", 100)]


def test_worse_on_every_axis_is_dominated():
    reason = dominated(INPUT, WORSE)
    assert "less accurate (by 10.00 %)" in reason
    assert "slower (12 ms against 10 ms)" in reason
    assert "bigger (101 B against 100 B)" in reason
    assert dominated(INPUT, WORSE[:2]) is not None
    assert dominated(INPUT, WORSE[1:]) is not None


@pytest.mark.parametrize("better", [
    figure("drop", 0.0, -0.05, 0.05),
    figure("drop", 0.01, -0.001, 0.05),
    figure("latency-p50", 9.0, 8.9, 9.1),
    figure("latency-p50", 10.15, 10.05, 10.3),
    figure("size", 100),
    figure("size", 99),
])  # fmt: skip
def test_one_axis_that_is_not_worse_is_enough(better):
    assert dominated(INPUT, [better if old.name == better.name else old for old in WORSE]) is None


@pytest.mark.parametrize("candidate", [
    WORSE[:1],
    [],
    [WORSE[0], figure("latency-p50", 12.0, 11.9, 12.1, on="another")],
    [WORSE[0], figure("latency-p50", None)],
    [WORSE[0], figure("latency-p50", 12.0)],
    [WORSE[0], figure("latency-p50", 12.0, 11.9, 12.1, note="emulated")],
    [figure("drop", 0.1), figure("size", 101)],
    [WORSE[0], figure("latency-p90", 12.0, 11.9, 12.1)],
    [figure("accuracy", 0.1), figure("size", 101)],
])  # fmt: skip
def test_fewer_than_two_proven_axes_say_nothing(candidate):
    assert dominated(INPUT, candidate) is None


def test_percentiles_are_one_axis_and_all_must_be_slower():
    original = [figure("latency-p50", 10.0, 9.9, 10.1), figure("latency-p99", 20.0, 19, 21)]
    slower = [figure("latency-p50", 12.0, 11.9, 12.1), figure("latency-p99", 30.0, 29, 31)]
    assert dominated(original, slower) is None
    assert dominated([*original, figure("size", 1)], [*slower, figure("size", 2)]) is not None
    mixed = [slower[0], figure("latency-p99", 15.0, 14, 16), figure("size", 2)]
    assert dominated([*original, figure("size", 1)], mixed) is None


def test_a_prediction_can_only_speak_for_the_candidate():
    def predicted(value):
        return figure("latency-p50", value, value / 2, value * 2, provenance="predicted", n=0)

    lossy = [figure("drop", 0.1, 0.05, 0.15), figure("size", 101)]
    assert dominated([predicted(10.0), INPUT[1]], [*lossy, predicted(5.0)]) is None
    assert dominated([predicted(10.0), INPUT[1]], [*lossy, predicted(15.0)]) is not None
    assert dominated([predicted(10.0), INPUT[1]], [lossy[0], predicted(90.0)]) is None


def test_a_size_is_the_same_everywhere_and_nan_is_no_better():
    assert dominated([figure("size", 100, on="host")], [WORSE[0], figure("size", 101)]) is not None
    assert dominated(INPUT, [figure("drop", math.nan), figure("size", 101)]) is not None


def test_what_is_disqualified_misses_its_budget_whatever_its_value():
    slow = Figure(name="latency-p95", value=1, unit="ms", provenance="measured", on="x", low=1, high=1, n=300)
    other = Figure(name="latency-p95", value=1, unit="ms", provenance="predicted", on="x", low=1, high=1)
    wrong = msgspec.structs.replace(slow, note="the CPU ran", disqualified="the CPU ran")
    asked = Budget(latency_ms={"p95": 5})
    assert judge(asked, [slow]).status == "pass"
    for figures in ([wrong], [other, wrong], [wrong, other]):
        (check, *_) = judge(asked, figures).checks
        assert (check.status, check.reason) == ("fail", "latency-p95: the CPU ran")
    assert judge(Budget(), [wrong]).status == "pass", "nothing was asked"
