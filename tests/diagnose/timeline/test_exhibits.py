"""What the report draws of traces: nothing that reads as idle time and was none, nothing left out in silence."""

from moexray.core.limits import Limits
from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.diagnose.timeline import exhibits
from moexray.diagnose.timeline.exhibits import MOST, RANKS, _fitting
from moexray.readers.read_any import read_sources
from trace_samples import Trace, pair_of_ranks


def exhibits_of(*named):
    return diagnose(read_sources([Source(n, content=t.text().encode()) for n, t in named]), Limits()).exhibits


def busy(kernels, rank=0, shift_us=0.0):
    trace = Trace(rank, 1, shift_us)
    for step in range(4):
        trace.step(step, step * 50_000, 49_000)
        for i in range(kernels):
            trace.kernel(step * 50_000 + 20 + i * 40, 30)
    return trace


def test_many_short_spans_are_joined_and_not_left_out():
    told = exhibits_of(("a.json", busy(1_000)))
    spans = told["spans"]
    assert len(spans) <= MOST
    assert sum(s["dur_s"] for s in spans) > 0.99 * 3 * 1_000 * 40e-6
    assert told["spans_cut"] == [{"capture": 0, "ranks": 0, "closed_s": 16e-6}]


def test_few_spans_stay_as_they_are():
    told = exhibits_of(("a.json", busy(100)))
    assert len(told["spans"]) == 300
    assert not told["spans_cut"]
    assert {s["step"] for s in told["spans"]} <= {0, 1, 2, 3}


def test_only_the_same_kind_of_the_same_step_is_joined():
    spans = [(i * 10, i * 10 + 5, ("comm", "compute")[i % 2], "n", i // 500) for i in range(1_000)]
    joined, gap = _fitting(list(spans))
    assert (len(joined), gap) == (4, exhibits.FIRST_GAP_NS)
    assert sorted(s[4] for s in joined) == [0, 0, 1, 1]


def test_traces_that_were_not_taken_together_share_no_axis():
    day_us = 86_400e6
    named = [*((f"one/{t.rank}.json", t) for t in pair_of_ranks(steps=5)),
             ("two/0.json", busy(20, shift_us=day_us)), ("three/0.json", busy(20, shift_us=2 * day_us))]  # fmt: skip
    spans = exhibits_of(*named)["spans"]
    where = {s["source"]: s["capture"] for s in spans}
    assert where["one/0.json"] == where["one/1.json"]
    assert len({where["one/0.json"], where["two/0.json"], where["three/0.json"]}) == 3


def test_a_rank_that_occurs_twice_has_two_lanes():
    first, second = (busy(20) for _ in range(2))
    first.world = second.world = 4
    told = exhibits_of(("a.json", first), ("b.json", second))
    assert len({s["capture"] for s in told["spans"]}) == 1
    assert {s["who"] for s in told["spans"]} == {"rank 0, a.json", "rank 0, b.json"}


def test_ranks_beyond_the_first_are_counted():
    told = exhibits_of(*((f"{t.rank}.json", t) for t in pair_of_ranks(steps=4, ranks=RANKS + 3)))
    assert [cut["ranks"] for cut in told["spans_cut"]] == [3]
    assert all(f"one of {RANKS + 3} ranks, {RANKS} shown" in line["source"] for line in told["series"])
