"""The stage prune-weights: what it writes, and what it says of the device."""

import pytest
import torch
from safetensors.torch import load_file

import house
from edgekit.artifact import Artifact
from edgekit.errors import UsageError
from edgekit.networks.intake import intake_torch
from edgekit.plan import make_stage
from edgekit.profile import Preferences
from edgekit.stage import Context, Inputs
from edgekit.stages.prune_weights import PruneWeights

NET = """
import torch

def build():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 6))
    net.example_inputs = {"input": torch.zeros(1, 8)}
    return net
"""


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    base = tmp_path_factory.mktemp("net")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        (base / "net_of_zeros.py").write_text(NET)
        return base / "artifact", intake_torch("python:net_of_zeros:build", base / "artifact")


def run(stage, taken, out, **profile):
    folder, facts = taken
    out.mkdir()
    inputs = Inputs(
        artifact=Artifact(kind="torch", files={}, facts=facts), folder=folder, profile=house.profile(**profile)
    )
    return stage.run(inputs, out, Context(scratch=out))


def test_a_device_that_gains_from_the_pattern(taken, tmp_path):
    device = {"layers": Preferences(sparsity=("2:4",))}
    facts = run(PruneWeights(pattern="2:4"), taken, tmp_path / "out", **device)
    state = load_file(tmp_path / "out" / "weights.safetensors")
    assert ((state["0.weight"].reshape(-1, 4) != 0).sum(1) == 2).all()
    assert facts["sparsity"]["layers"] == {"0.weight": 0.5, "2.weight": 0.5}
    assert torch.equal(state["0.bias"], load_file(taken[0] / "weights.safetensors")["0.bias"])
    (finding,) = facts["findings"]
    assert (finding["severity"], finding["rule"]) == ("note", "sparsity-gain")


@pytest.mark.parametrize("fast", [(), ("2:4",)])
def test_a_device_that_gains_nothing_is_told(fast):
    stage, sparsity = PruneWeights(ratio=0.5), {"parameters": 0.47, "uneven": []}
    (finding,) = stage._findings(house.profile(layers=Preferences(sparsity=fast)), sparsity)
    assert (finding.severity, finding.rule) == ("warning", "sparsity-no-gain")
    assert "47%" in finding.text
    assert "test-device" in finding.text
    assert ("2:4" in finding.remedy) == bool(fast)
    (other,) = PruneWeights(pattern="4:8")._findings(house.profile(layers=Preferences(sparsity=fast)), sparsity)
    assert other.rule == "sparsity-no-gain"


def test_layers_that_do_not_divide_are_named():
    sparsity = {"parameters": 0.4, "uneven": ["0.weight"]}
    device = house.profile(layers=Preferences(sparsity=("2:4",)))
    assert [found.node for found in PruneWeights(pattern="2:4")._findings(device, sparsity)] == ["", "0.weight"]


@pytest.mark.parametrize(
    "options", [{"ratio": 0}, {"ratio": 1.0}, {"pattern": "2"}, {"pattern": "4:4"}, {"pattern": "0:4"}]
)
def test_options_that_make_no_sense(options):
    with pytest.raises(UsageError, match="prune-weights"):
        make_stage("prune-weights", options, "test")
