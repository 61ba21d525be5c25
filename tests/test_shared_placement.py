"""Plans on the recorded routing of three tasks, each scored on traffic that it was not made on."""

from pathlib import Path

import numpy as np
import pytest

from moexray.algorithms.packing import balancedness, rank_loads
from moexray.algorithms.placement import Shape, place
from moexray.algorithms.replication import token_costs
from moexray.readers.read_any import read_any
from moexray.whatif.placement import Options, plan
from moexray.whatif.traffic import traffic

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "routing"
TASKS = sorted(FOLDER.glob("dsv2lite_*.npz"))
pytestmark = pytest.mark.skipif(
    len(TASKS) < 3, reason="the shared data lie beside the checkout; they do not here"
)


@pytest.fixture(scope="module")
def tasks():
    return [traffic(read_any([str(path)])) for path in TASKS]


def test_a_plan_holds_on_its_task_and_on_no_other(tasks):
    shape = Shape(64, 80, 8)
    halves = [task.halves() for task in tasks]

    def score(a, b):
        scores = []
        for y in range(len(tasks[0].layers)):
            seen, new = halves[a][0].steps(y).sum(axis=0), halves[b][1].steps(y).sum(axis=0)
            slots = place(token_costs(seen, shape.most), shape)
            scores.append(balancedness(rank_loads(new, slots, 8)))
        return np.mean(scores)

    table = np.array([[score(a, b) for b in range(3)] for a in range(3)])
    same, other = np.diag(table), table[~np.eye(3, dtype=bool)]
    assert same.min() > 0.9
    assert other.max() < 0.85


def test_the_command_says_so(tasks):
    made = plan(tasks[0], Shape(64, 80, 8), Options())
    assert made.mean("balancedness") > 0.999
    assert 0.9 < made.later.balancedness < made.mean("balancedness")
    assert made.later.trivial < 0.75
