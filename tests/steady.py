"""What many steps leave in memory, told by whose lines asked for it."""

import gc
import tracemalloc
from pathlib import Path

from moexray import runtime

OURS = str(Path(runtime.__file__).parent / "*")


def taken(step, times=10_000):
    """Bytes that `times` steps left behind in lines of `runtime` or called by them, and the highest point.

    Threads of the process that runs the tests (its messages, its coverage) take memory meanwhile: what stays
    is counted by who asked, the highest point is that of all.
    """
    gc.collect()
    tracemalloc.start(12)
    try:
        step(0)
        before, start = tracemalloc.take_snapshot(), tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for number in range(times):
            step(number)
        peak = tracemalloc.get_traced_memory()[1]
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    only = [tracemalloc.Filter(True, OURS, all_frames=True)]
    found = after.filter_traces(only).compare_to(before.filter_traces(only), "traceback")
    return sum(one.size_diff for one in found), peak - start
