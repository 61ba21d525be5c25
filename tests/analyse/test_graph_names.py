"""Kernels of graph replays named by the trace of the capture."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from moexray.analyse.graph_names import named_replays
from moexray.analyse.timeline import profiles
from moexray.core.source import Source
from moexray.faces.cli.main import main
from moexray.readers.read_any import read_any, read_sources
from trace_samples import Trace

KINETO = Path(__file__).parents[3] / "shared" / "data" / "timeline" / "kineto"
LAYER = (("aten::mm", "gemm"), ("moe::route", "topk"), ("moe::experts", "grouped"), ("moe::experts", "grouped"), ("aten::add_", "add"))


def capture(layers=3, *, skip=None, names=None):
    """A trace of the capture: calls in their operators, no kernels."""
    trace = Trace()
    trace.call("cudaStreamBeginCapture", 0, 1)
    for i, (usual, _) in enumerate(LAYER * layers):
        operator = names[i] if names else usual
        trace.slice("cpu_op", operator, 10 + 10 * i, 8)
        if i != skip:
            trace.call("cudaLaunchKernel" if i % 2 else "cuLaunchKernelEx", 12 + 10 * i, 2)
    trace.call("cudaStreamEndCapture", 10 * len(LAYER) * layers + 20, 1)
    trace.call("cudaLaunchKernel", 10 * len(LAYER) * layers + 40, 1)  # outside
    return trace.text()


def replay(layers=3, times=4):
    """Graph launches, each with all kernels on its correlation."""
    trace = Trace()
    for step in range(times):
        at = 10_000 * step
        trace.call("cudaGraphLaunch", at, 5, correlation=1000 + step)
        for i, (_, kernel) in enumerate(LAYER * layers):
            trace.slice("kernel", kernel, at + 20 + 100 * i, 50, pid=0, tid=7, device=0, stream=7, correlation=1000 + step)
    return trace.text()


def found(**files):
    run = read_sources([Source(f"{name}.json", content=text.encode()) for name, text in files.items()])
    return named_replays(profiles(run))


def test_every_kernel_gets_the_operator_of_its_launch():
    [(profile, replays)] = found(capture=capture(), replay=replay())
    assert (replays.capture, replays.replays, replays.agreement) == ("capture.json", 4, 1.0)
    assert replays.operators == tuple(operator for operator, _ in LAYER * 3)
    assert replays.time_by_operator(profile) == [("moe::experts", 6, 1_200_000), *((o, 3, 600_000) for o in ("aten::mm", "moe::route", "aten::add_"))]


def test_near_misses_leave_the_kernels_without_names():
    assert not found(capture=capture(skip=4), replay=replay())  # a call is missing
    assert not found(capture=capture(2), replay=replay())  # another graph
    mixed = [o for o, _ in LAYER * 3]
    mixed = mixed[::2] + mixed[1::2]
    assert not found(capture=capture(names=mixed), replay=replay())  # as many, but they do not fit together
    assert not found(replay=replay())
    assert not found(capture=capture())


def test_two_captures_that_disagree_name_nothing():
    other = ["x::" + o for o, _ in LAYER * 3]
    assert not found(a=capture(), b=capture(names=other), replay=replay())
    assert len(found(a=capture(), b=capture(), replay=replay())) == 1


def test_the_command_tells_the_time_by_operator(tmp_path):
    (tmp_path / "capture.json").write_text(capture())
    (tmp_path / "replay.json").write_text(replay())
    [row] = json.loads(CliRunner().invoke(main, ["timeline", str(tmp_path), "--format", "json"]).stdout)["graphs"]
    assert (row["source"], row["capture"], row["kernels"], row["replays"]) == ("replay.json", "capture.json", 15, 4)
    assert row["operators"][0] == {"operator": "moe::experts", "kernels": 6, "dur_ns": 1_200_000}
    text = CliRunner().invoke(main, ["timeline", str(tmp_path)]).stdout
    assert "moe::experts 40.0%" in text


@pytest.mark.skipif(not KINETO.is_dir(), reason="the shared data are not here")
def test_a_real_pair_of_capture_and_replay():
    """One launch owns 421 kernels of 24 layers; the capture holds 421 launches."""
    paths = [str(p) for p in sorted(KINETO.glob("vllm_gptoss_decode_fullgraph_*"))]
    [(profile, replays)] = named_replays(profiles(read_any(paths)))
    assert (len(replays.operators), replays.agreement) == (421, 1.0)
    times = {operator: count for operator, count, _ in replays.time_by_operator(profile)}
    assert times["vllm::moe_forward"] == 72
    assert times["_C::rotary_embedding"] == 24
    rotary = {profile.names[profile.name[r]] for r, o in zip(replays.rows[0], replays.operators, strict=True) if o == "_C::rotary_embedding"}
    assert all("rotary_embedding" in name for name in rotary)
