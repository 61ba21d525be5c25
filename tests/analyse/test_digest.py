"""A digest meets other ranks as the whole would."""

import json

import numpy as np
import pytest

from moexray.analyse.digest import digest
from moexray.analyse.timeline import profiles
from moexray.analyse.timeline_comm import survey
from moexray.core.run import merge
from moexray.core.source import Source
from moexray.core.store import load, save
from moexray.readers.read_any import read_sources


def slices(rank, *, steps=6, late=0.0, marks="ProfilerStep#{}", seq=True):
    """A rank whose kernel takes `late` us longer, then a collective that ends when the last rank came."""
    out, t, worst = [], 1000.0 + 37 * rank, max(0.0, late)
    for step in range(steps):
        at = t + 1000 * step
        if marks:
            out.append({"ph": "X", "cat": "user_annotation", "name": marks.format(step), "ts": at, "dur": 990, "pid": 1, "tid": 1})
        out.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": at + 5, "dur": 20, "pid": 1, "tid": 1})
        out.append({"ph": "X", "cat": "kernel", "name": "gemm", "ts": at + 20, "dur": 100 + late * (rank == 1), "pid": 0,
                    "tid": 7, "args": {"device": 0, "stream": 7}})
        begin = at + 130 + worst * (rank == 1)
        meta = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": step, "Group size": 2} if seq else {}
        out.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 100, "dur": 4, "pid": 1, "tid": 1,
                    "args": {"correlation": 100 + step}})
        out.append({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": begin, "dur": at + 150 + worst - begin,
                    "pid": 0, "tid": 9, "args": {"device": 0, "stream": 9, "correlation": 100 + step, **meta}})
    return {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": out}


def read(rank, **more):
    return read_sources([Source(f"rank{rank}.json", content=json.dumps(slices(rank, **more)).encode())])


@pytest.mark.parametrize("marks", ["ProfilerStep#{}", "execute_model", None])
@pytest.mark.parametrize("seq", [True, False])
def test_ranks_meet_as_before(tmp_path, marks, seq):
    runs = [read(rank, late=300.0, marks=marks, seq=seq, steps=12) for rank in (0, 1)]
    (whole,) = survey(merge(runs))
    for rank, run in enumerate(runs):
        save(digest(run), tmp_path / str(rank))
    (cut,) = survey(merge([load(tmp_path / str(rank)) for rank in (0, 1)]))
    a, b = whole.collectives, cut.collectives
    assert len(a) == len(b) == 12
    np.testing.assert_array_equal(a.start, b.start)
    np.testing.assert_array_equal(a.lateness, b.lateness)
    np.testing.assert_array_equal(a.late, b.late)
    np.testing.assert_array_equal(a.step, b.step)
    assert a.step_ns == b.step_ns
    assert a.labels(a.step) == b.labels(b.step)
    assert all(p.cut for p in cut.profiles)
    assert not any(p.cut for p in whole.profiles)


def test_a_digest_is_small_and_keeps_other_tables():
    run = read(0, steps=50)
    cut = digest(run)
    assert len(cut.batches("trace")[0].columns["ts_ns"]) == 150  # collective, its launch, step
    assert cut.inputs == run.inputs
    log = read_sources([Source("a.log", content=b"INFO 01-01 00:00:00 [x.py:1] Loading model weights took 3.2 GB\n")])
    assert digest(log).tables.keys() == log.tables.keys()


def test_a_trace_without_communication_keeps_its_steps():
    run = read_sources([Source("t.json", content=json.dumps({"traceEvents": slices(0)["traceEvents"][:3]}).encode())])
    (profile,) = profiles(digest(run))
    assert len(profile.steps) == len(profiles(run)[0].steps)
