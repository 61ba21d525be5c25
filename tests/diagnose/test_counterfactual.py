"""P99 without a cause, and the link from skew to memory."""

import io
import json
import pickle

import numpy as np
import pytest

from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources
from trace_samples import BASE_NS, pair_of_ranks


def say(**files):
    sources = [Source(name, content=data if isinstance(data, bytes) else data.encode()) for name, data in files.items()]
    return diagnose(read_sources(sources))


def traces(**asked):
    return {f"rank{t.rank}.json": t.text() for t in pair_of_ranks(steps=40, **asked)}


def numbers(finding):
    texts = [e.text for e in finding.evidence if "p99_without_s" in e.text]
    return {k: float(v) for k, v in (p.split("=") for p in texts[0].split())} if texts else None


def test_a_stall_says_what_the_steps_would_have_been():
    said = say(**traces(gap=tuple(range(3, 40, 6)), record=("cuda_runtime", "cudaFree")))
    cause = next(f for f in said.findings if f.id == "mem.alloc_stall")
    found = numbers(cause)
    assert found["p99_s"] == pytest.approx(0.11225, rel=1e-3)
    assert (found["p50_without_s"], found["p99_without_s"]) == pytest.approx((0.01225, 0.01225), rel=0.01)
    assert found["p99_without_low_s"] <= found["p99_without_s"] <= found["p99_without_high_s"]
    assert found["excess_share_ratio"] == pytest.approx(1)


def test_a_rank_that_computes_longer_would_take_as_long_as_the_others():
    (late,) = say(**traces(late_us=4_000)).findings
    found = numbers(late)
    assert late.id == "comm.straggler_wait"
    assert found["p50_s"] == pytest.approx(0.0162, rel=1e-3)
    assert found["p99_without_s"] == pytest.approx(0.0122, rel=1e-3)  # not half of the excess, as if it were shared


def test_a_healthy_run_gets_none():
    assert all(numbers(f) is None for f in say(**traces()).findings)


def skewed(tokens_follow, seed=0, others=0):
    """Rank 1 is hot and stalls; the requests of its snapshot follow its tokens or do not, among up to so many others."""
    rng = np.random.default_rng(seed)
    ranks = pair_of_ranks(steps=40, late_us=3000.0, gap=tuple(range(3, 40, 6)), record=("cuda_runtime", "cudaFree"))
    hot = next(t for t in ranks if t.rank == 1)
    starts = [e["ts"] for e in hot.events if e["name"].startswith("ProfilerStep")]
    grow = np.linspace(1.0, 1.6, 40)
    cube = np.stack([[[900, 900, int(1500 * g), int(1500 * g)]] for g in grow])
    table = io.BytesIO()
    np.savez(table, logical_count=cube, ep_size=2, steps=np.arange(40))
    events, at = [], 1 << 40
    for step, start in enumerate(starts):
        size = int((4 << 20) * (grow[step] if tokens_follow else rng.uniform(1.0, 1.6)))
        smaller = rng.integers(1 << 20, 4 << 20, rng.integers(others + 1)).tolist()
        for i, asked in enumerate([size] * 12 + smaller):
            when = BASE_NS // 1000 + int(start) + 10 + i
            events += [{"action": a, "addr": at, "size": asked, "stream": 0, "time_us": when, "frames": []}
                       for a in ("alloc", "free_requested", "free_completed")]  # fmt: skip
    live = [{"address": at + (i << 21), "size": 1 << 20, "requested_size": 1 << 20, "frames": [],
             "state": "active_allocated" if i % 2 else "inactive"} for i in range(2)]  # fmt: skip
    segment = {"device": 0, "address": at, "total_size": 2 << 20, "allocated_size": 1 << 20, "active_size": 1 << 20,
               "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
               "frames": [], "blocks": live}  # fmt: skip
    document = {"segments": [segment], "device_traces": [events], "allocator_settings": {}}
    files = {f"traces/rank{t.rank}.json": t.text() for t in ranks}
    return {**files, "load.npz": table.getvalue(), "memory/snapshot_rank1.pickle": pickle.dumps(document)}


@pytest.mark.parametrize("others", [0, 40])
def test_memory_that_follows_the_tokens_is_linked_to_the_skew(others):
    said = say(**skewed(tokens_follow=True, others=others))
    stall = next(f for f in said.findings if f.id == "mem.alloc_stall")
    assert "ep.skew" in stall.implied_by, json.dumps(said.to_json())[:400]
    assert any("rank_correlation_ratio" in e.text for e in stall.evidence)
    skew = next(f for f in said.findings if f.id == "ep.skew")
    assert numbers(skew)["excess_share_ratio"] == pytest.approx(1)
    assert numbers(stall)["excess_share_ratio"] < 1


@pytest.mark.parametrize("seed", range(4))
def test_memory_that_does_not_follow_them_is_not(seed):
    said = say(**skewed(tokens_follow=False, seed=seed, others=8 * seed))
    stall = next(f for f in said.findings if f.id == "mem.alloc_stall")
    assert "ep.skew" not in stall.implied_by


def test_a_rank_whose_trace_is_not_there_gets_no_figure():
    files = traces(late_us=4000.0, ranks=3)
    counts = io.BytesIO()
    np.savez(counts, logical_count=np.tile([300, 900, 300], (40, 1, 1)), ep_size=3, steps=np.arange(40))
    del files["rank1.json"]
    said = say(**files, counts=counts.getvalue())
    assert numbers(next(f for f in said.findings if f.id == "ep.skew")) is None


def test_a_slow_transfer_takes_the_rank_of_the_link_that_is_slow():
    log = "\n".join(
        f"h{r}:1:1 [0] NCCL INFO ncclCommInitRank comm 0x{r} rank {r} nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x9 - Init COMPLETE\n"
        f"h{r}:1:1 [0] NCCL INFO Channel 00/0 : {r}[0] -> {1 - r}[0] [send] via {'NET/Socket/0' if r else 'NET/IB/0'}"
        for r in range(2)
    )
    slow = [f for f in say(**traces(slow=range(20, 32)), log=log).findings if f.id == "comm.slow_transfer"]
    assert [(f.severity, f.subject.rank) for f in slow] == [("warn", 1)]
    assert any("NET/Socket" in e.text for e in slow[0].evidence)
