"""Re-timed steps against the same steps made without the cause."""

import numpy as np
import pytest

from moexray.analyse.retime import KINDS, clockwork, times
from moexray.analyse.timeline import profiles
from moexray.analyse.timeline_comm import match
from moexray.core.source import Source
from moexray.readers.read_any import read_sources
from trace_samples import pair_of_ranks


def work(**asked):
    sources = [Source(f"{t.rank}.json", content=t.text().encode()) for t in pair_of_ranks(steps=24, **asked)]
    return clockwork(match(profiles(read_sources(sources))))


def test_nothing_removed_is_what_was_observed():
    seen = work(gap=(5, 11), record=("cuda_runtime", "cudaFree"))
    c = seen.paces(np.zeros_like(seen.stalled))
    assert c == pytest.approx(seen.paces(seen.of(("jit", "gc"), None)))
    assert c.max() == pytest.approx(112.25e6, rel=1e-3)  # 100 + 10 + 2 + 0.25 ms


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (("cuda_runtime", "cudaFree"), "memory"),
        (("python_function", "gc.collect"), "gc"),
        (("cuda_driver", "cuModuleLoadData"), "host"),
        (("python_function", "triton/runtime/jit.py(700): _do_compile"), "jit"),
        (None, "host"),
    ],
)
def test_a_stalled_rank_re_timed_is_the_run_without_the_stall(record, kind):
    seen, truth = work(gap=(5, 11, 17), record=record), work()
    assert {KINDS[k] for k in seen.kind[seen.stalled]} == {kind}
    assert seen.paces(seen.of((kind,), 1)) == pytest.approx(truth.paces(), rel=1e-3)
    others = tuple(k for k in KINDS if k != kind)
    assert seen.paces(seen.of(others, None)).max() > 100e6
    assert seen.paces(seen.of((kind,), 0)).max() > 100e6


def test_even_work_is_the_mean_of_the_ranks():
    seen = work(late_us=3000.0)
    assert np.median(seen.paces(seen.of((), None), even=True)) == pytest.approx(
        np.median(work().paces()) + 1.5e6, rel=0.01
    )


def test_slow_transfers_take_their_usual_time():
    seen, truth = work(slow=(3, 9)), work()
    assert seen.paces(seen.of((), None), transfers=True) == pytest.approx(truth.paces(), rel=1e-3)


def test_the_order_of_ranks_and_their_clocks_do_not_matter():
    a = work(gap=(5,), record=("cuda_runtime", "cudaFree"))
    b = work(gap=(5,), record=("cuda_runtime", "cudaFree"), shift_us=777.0)
    assert a.paces() == pytest.approx(b.paces())


def test_too_few_steps_say_nothing():
    sources = [Source(f"{t.rank}.json", content=t.text().encode()) for t in pair_of_ranks(steps=4)]
    assert clockwork(match(profiles(read_sources(sources)))) is None


def test_times_by_hand_and_their_interval():
    found = times(np.array([10e6] * 99 + [110e6]))
    assert found.p50_s == pytest.approx(0.010)
    assert found.mean_s == pytest.approx(0.011)
    assert found.low_s <= found.p99_s <= found.high_s
    assert times(np.full(50, 7e6)).high_s == pytest.approx(0.007)


def test_a_larger_batch_is_no_stall():
    seen = work(large=(12,))
    assert not seen.stalled.any()
    assert seen.paces(seen.of(KINDS, None), even=True).max() == pytest.approx(32.25e6, rel=0.01)
    stalled = work(large=(12,), gap=(5, 12), record=("cuda_runtime", "cudaFree"))
    assert stalled.paces(stalled.of(("memory",), 1)) == pytest.approx(seen.paces(), rel=1e-3)


@pytest.mark.parametrize("missed", [1, 3])
def test_ranks_whose_profilers_start_apart_share_their_steps(missed):
    ranks = pair_of_ranks(steps=24, gap=(9,), record=("cuda_runtime", "cudaFree"))
    ranks[0].events = [e for e in ranks[0].events if e["ts"] >= missed * 12_250 - 50]
    sources = [Source(f"{t.rank}.json", content=t.text().encode()) for t in ranks]
    matched = match(profiles(read_sources(sources)))
    assert sorted(set(matched.step.tolist())) == list(range(matched.step.min(), matched.step.min() + 24 - missed))
    assert matched.labels(matched.step) == list(range(missed, 24))
