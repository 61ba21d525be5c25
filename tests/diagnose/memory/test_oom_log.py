"""Retries that recovered, graph pools that are large."""

import pytest

from moexray.core.limits import Limits
from moexray.diagnose.memory.oom_log import retries_recovered
from text_runs import run_of, said

GIB = 1 << 30
WARN = "[rank{r}]:[W812 16:00:{s:02d}.64344{n:04d} CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device {r} while trying to allocate {b} bytes (free: 15794176, total: 150111977472).\n"
OOM = "[rank{r}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU {r} has a total capacity of 79.11 GiB of which 310.00 MiB is free. Including non-PyTorch memory, this process has 78.79 GiB memory in use. Of the allocated memory 77.52 GiB is allocated by PyTorch, and 402.11 MiB is reserved by PyTorch but unallocated.\n"
ID = "mem.alloc_retry_recovered"


def warnings(ranks, times):
    return "".join(WARN.format(r=r, s=s, n=i, b=20971520 * (1 + r)) for s in times for r in ranks for i in range(3))


def test_distinct_allocations_are_counted_not_lines():
    found = said(log=warnings(range(2), range(5)))
    assert list(found) == [ID]
    f = found[ID]
    assert f.value == 10
    assert "10 device allocations failed at first (30 warning lines on 2 devices)" in f.claim
    assert "lines=30 distinct_allocations=10 final_oom=0" in f.evidence[0].text
    assert f.severity == "warn"


def test_an_error_on_the_same_device_takes_its_place():
    both = warnings([0, 1], range(3))
    assert ID not in said(log=warnings([0], range(3)) + OOM.format(r=0))
    other = said(log=both + OOM.format(r=0))
    assert other[ID].value == 3  # those of device 1
    assert "mem.true_exhaustion" in other


def test_a_retry_counter():
    stats = '{{"allocated_bytes.all.current": 1, "reserved_bytes.all.current": 2, "num_alloc_retries": {}, "num_ooms": {}}}'
    assert "18 retries" in said(stats=stats.format(18, 0))[ID].claim
    assert ID not in said(stats=stats.format(0, 0))
    assert retries_recovered(run_of(stats=stats.format(5, 1)), Limits()) == []


BEGIN = "[2025-07-29 18:14:23 TP{r}] Capture cuda graph begin. This can take up to several minutes. avail mem={a} GB\n"
END = "[2025-07-29 18:14:43 TP{r}] Capture cuda graph end. Time elapsed: 19.50 s. mem usage={c} GB. avail mem={z} GB.\n"


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (BEGIN.format(r=0, a=11.43) + END.format(r=0, c=6.19, z=5.24), 0.5416),
        (END.format(r=0, c=3.0, z=6.0), 1 / 3),  # before = after + cost
        (BEGIN.format(r=0, a=9.71) + END.format(r=0, c=1.02, z=8.69), None),  # 10.5 %
        ("INFO 07-29 11:31:40 [g.py:2306] Graph capturing finished in 21 secs, took 9.40 GiB\n", None),
    ],
)
def test_graph_capture_against_what_was_left(text, share):
    found = said(log=text)
    if share is None:
        assert found == {}
    else:
        f = found["mem.graph_pool_large"]
        assert f.value == pytest.approx(share, rel=1e-3)
        assert f.settle_with


def test_two_engines_on_the_same_model():
    vllm = "INFO 01-12 09:30:04 [core.py:93] Initializing a V1 LLM engine (v0.17.0) with config: model='M'\nINFO 07-29 11:31:40 [g.py:1] Graph capturing finished in 21 secs, took {} GiB\n"
    sglang = "[2025-07-29 18:14:20] server_args=ServerArgs(model_path='M', tp_size=8)\n" + BEGIN.format(r=0, a=50.0) + END.format(r=0, c=6.0, z=44.0)
    assert said(a=vllm.format(2.0), b=sglang)["mem.graph_pool_large"].value == pytest.approx(3.0)
    assert said(a=vllm.format(4.0), b=sglang) == {}
    assert said(a=vllm.format(2.0).replace("'M'", "'N'"), b=sglang) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("INFO 01-12 10:00:00 [x.py:1] rank 0 num_alloc_retries=12 num_ooms=0 allocated=61.2GiB\n", True),
        ("OrderedDict([('reserved_bytes.all.current', 9), ('num_alloc_retries', 12), ('num_ooms', 0)])\n", True),
        ("OrderedDict({'num_alloc_retries': 12,\n 'num_ooms': 0})\n", True),
        ("INFO 01-12 10:00:00 [x.py:1] num_alloc_retries=0 num_ooms=0\n", False),
        ("INFO 01-12 10:00:00 [x.py:1] num_alloc_retries=12 num_ooms=1\n", False),
        ("INFO 01-12 10:00:00 [x.py:1] num_alloc_retries=12\n", False),
    ],
)
def test_counters_that_a_log_prints(text, says):
    assert ("mem.alloc_retry_recovered" in said(log=text)) is says
