"""What a log alone says of the balance: the axis behind its averages, the EP size behind its ranks."""

import io
import json

import numpy as np
import pytest

from moexray.analyse.stated_ep import logged_ep, stated_ep
from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.diagnose.routing.log import parts
from moexray.readers.read_any import read_sources


def read(**files):
    return read_sources([Source(n.replace("__", "."), content=c) for n, c in files.items()])


def balance(loads, over):
    """Lines of an engine that takes its figure over `over` (0 layers, 1 ranks) of [layers, ranks] tables."""
    out = []
    for i, table in enumerate(loads):
        average, top = table.mean(axis=over).sum(), table.max(axis=over).sum()
        out.append(
            f"INFO 03-07 10:00:{i:02d} [eplb_state.py:549] EPLB step: {i * 10} for model M: avg_tokens={average:.2f}, "
            f"max_tokens={top:.0f}, balancedness={average / top:.4f}, steps until the next rearrangement: {900 - i * 10}"
        )
    return "\n".join(out).encode()


def rank_lines(ranks):
    return "\n".join(
        f"(Worker pid={90 + r}) INFO 03-07 09:59:0{r % 10} [parallel_state.py:1208] rank {r} in world size {len(ranks)} "
        f"is assigned as DP rank 0, PP rank 0, TP rank {r}, EP rank {r}" for r in ranks
    ).encode()  # fmt: skip


def tables(layers, ranks, seed=0):
    return np.random.default_rng(seed).integers(900, 1100, (20, layers, ranks))


@pytest.mark.parametrize("divisor", [3, 6, 8, 26, 40])
def test_the_divisor_of_printed_averages_is_found(divisor):
    rng = np.random.default_rng(divisor)
    values = [round(int(v) / divisor, 2) for v in rng.integers(10_000, 90_000, 200)]
    assert parts(values) == divisor


@pytest.mark.parametrize("values", [[900.0, 901.0, 902.0], [10.5], [10.17, 11.33], [float(v) for v in range(50)]])
def test_whole_or_few_averages_tell_nothing(values):
    assert parts(values) == 1


def test_averages_of_any_fraction_have_no_divisor():
    rng = np.random.default_rng(1)
    assert parts([round(float(v), 2) for v in rng.uniform(900, 1000, 300)]) == 1


@pytest.mark.parametrize(
    ("layers", "ranks", "over", "known", "told"),
    [
        (6, 8, 0, False, True),  # sixths: no mean over 2, 4, 8 ranks
        (6, 8, 1, False, False),
        (6, 8, 1, True, False),
        (6, 6, 0, True, False),  # sixths fit six ranks
        (6, 4, 0, True, True),
        (16, 8, 0, False, False),  # sixteenths may be ranks
        (16, 8, 0, True, True),  # not with eight
    ],
)
def test_averages_that_the_ranks_cannot_give_are_over_layers(layers, ranks, over, known, told):
    files = {"server__log": balance(tables(layers, ranks), over)}
    if known:
        files["ranks__log"] = rank_lines(range(ranks))
    found = [f for f in diagnose(read(**files)).findings if f.id == "ep.metric_wrong_axis"]
    assert bool(found) == told
    for f in found:
        assert (f.severity, f.cannot_tell) == ("info", True)
        assert ("EP size" in f.settle_with) != known


def test_a_build_after_the_fix_is_believed():
    head = b"INFO 03-07 09:59:00 [core.py:93] Initializing a V1 LLM engine (v0.32.0) with config: model='M'\n"
    assert not diagnose(read(server__log=head + balance(tables(6, 8), 0))).findings


@pytest.mark.parametrize(("ranks", "size"), [(range(8), 8), ([0], None), ([0, 1, 3], None), ([1, 2], None)])
def test_the_ep_size_of_rank_lines(ranks, size):
    run = read(server__log=rank_lines(list(ranks)) + b"\n" + balance(tables(6, 8), 1))
    assert logged_ep(run) == size


def test_ranks_of_tensor_parallel_experts_are_no_ep_size():
    assert logged_ep(read(server__log=rank_lines(range(4)))) is None
    launch = b"vllm serve M --tensor-parallel-size 4 --enable-expert-parallel"
    assert stated_ep(read(server__log=rank_lines(range(4)), launch__txt=launch))[0] == 4


def test_rank_lines_settle_over_how_many_ranks_counts_are_uneven():
    counts = np.random.default_rng(0).integers(900, 1100, (12, 2, 16))
    counts[:, :, :2] *= 8
    out = io.BytesIO()
    np.savez(out, logical_count=counts)
    log = rank_lines(range(4)) + b"\n" + balance(counts.reshape(12, 2, 4, 4).sum(axis=3), 1)
    alone, both = read(a__npz=out.getvalue()), read(a__npz=out.getvalue(), server__log=log)
    [guess] = [f for f in diagnose(alone).findings if f.id == "ep.skew"]
    [sure] = [f for f in diagnose(both).findings if f.id == "ep.skew"]
    assert (guess.severity, sure.severity) == ("info", "warn")
    assert sure.subject.rank == 0


def test_a_duplicate_is_scored_on_the_slots_that_were_counted():
    slots = [[0, 0, 1, 2, 3, 4, 5, 6]]
    counts = np.array([[[900, 900, 100, 100, 100, 100, 100, 100]]])
    out = io.BytesIO()
    np.savez(out, physical_count=counts, ep_size=4, phy2log=slots)
    other = json.dumps({"expert_counts": [[5, 5, 5, 5, 5, 5, 5]]}).encode()
    result = diagnose(read(a__npz=out.getvalue(), b__json=other))
    [found] = [f for f in result.findings if f.id == "ep.duplicate_replica"]
    assert "from 0.333 to 0.600" in found.claim


def test_a_swap_that_gains_nothing_is_told_as_such():
    slots = {"num_gpus": 2, "physical_to_logical": [0, 0, 1, 2, 3, 4]}
    loads = {"expert_tokens": [0, 100, 100, 100, 100]}
    files = {"placement__json": json.dumps(slots).encode(), "load__json": json.dumps(loads).encode()}
    [found] = [f for f in diagnose(read(**files)).findings if f.id == "ep.duplicate_replica"]
    assert "takes balancedness from" in found.claim
    loads = {"expert_tokens": [200, 100, 100, 100, 100]}
    files["load__json"] = json.dumps(loads).encode()
    [found] = [f for f in diagnose(read(**files)).findings if f.id == "ep.duplicate_replica"]
    assert "no swap makes the ranks more even" in found.claim
