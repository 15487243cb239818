"""Several processes: what launchers say, how leader and followers find each other, and how gradients are averaged."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from edgekit.errors import InputError, UsageError
from edgekit.networks.launched import Place, lead, place
from edgekit.networks.team import Team

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Place()),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Place()),
        ({"WORLD_SIZE": "4"}, Place()),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, Place(rank=3, size=4, local=1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Place(rank=1, size=2, local=1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}, Place(rank=1, size=2, local=0)),
    ],
)
def test_the_place_is_what_the_launcher_says(variables, expected):
    assert place(variables) == expected
    assert expected.follows == (expected.rank > 0)


def test_variables_that_are_no_numbers_are_refused():
    with pytest.raises(UsageError, match="no numbers"):
        place({"RANK": "first", "WORLD_SIZE": "2"})


def test_alone_a_job_needs_nothing_more():
    assert lead("module:job", {}, {"A": "b"}) == {"A": "b"}


class Alone:
    num_processes, process_index, device = 1, 0, "cpu"


class Second:
    num_processes, process_index, device = 3, 1, "cpu"


def test_batches_are_shared_out():
    team = Team(Second())
    plan = [[number] for number in range(7)]
    assert team.steps(plan) == [[1], [4], [0]]  # as many steps for all, so that nobody waits for ever
    assert team.share(plan) == [[1], [4]]
    assert Team(Alone()).steps(plan) == Team(Alone()).share(plan) == plan
    assert not team.leads


def test_a_fault_is_raised_at_once_when_alone():
    with pytest.raises(InputError, match="broken"):
        Team(Alone()).average_gradients(torch.nn.Linear(1, 1), InputError("broken"))


MEAN = """
import json, os, sys
import torch
from accelerate import Accelerator
from edgekit.errors import InputError
from edgekit.networks.team import Team
accelerator = Accelerator(cpu=True)
team = Team(accelerator)
net = torch.nn.Linear(2, 1)
net.idle = torch.nn.Parameter(torch.zeros(3))
net.odd = torch.nn.Parameter(torch.zeros(()))
with torch.no_grad():
    net.weight.fill_(team.rank + 1.0)
team.start_alike(net)
started = net.weight.tolist()
net.weight.grad = torch.full((1, 2), float(team.rank))
net.bias.grad = torch.full((1,), 4.0)
if team.rank:
    net.odd.grad = torch.tensor(6.0)
team.average_gradients(net, None)
total = team.total(1.0, float(team.rank))
try:
    team.average_gradients(net, InputError("not finite", where="layer") if team.rank else None)
    fault = ""
except InputError as error:
    fault = str(error)
print(json.dumps([team.rank, started, net.weight.grad.tolist(), net.bias.grad.tolist(), net.odd.grad.tolist(),
      net.idle.grad is None, total, fault]))
"""


@pytest.mark.slow
def test_gradients_are_averaged_and_a_fault_is_everybodys():
    """One process alone knows of the fault and of the gradient of `odd`; nobody of one of `idle`."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = str(probe.getsockname()[1])
    paths = os.pathsep.join([str(ROOT / "toolkit"), str(ROOT / "exporters")])
    shared = {**os.environ, "PYTHONPATH": paths, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MEAN],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for rank, process in enumerate(started):
        out, _ = process.communicate(timeout=120)
        found = json.loads(out.splitlines()[-1])
        assert found[:7] == [rank, [[1.0, 1.0]], [[0.5, 0.5]], [4.0], 3.0, True, [2.0, 1.0]]
        assert "not finite" in found[7]
        assert "layer" in found[7]
