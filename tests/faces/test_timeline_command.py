"""`moexray timeline`: the document and what is said."""

import json

import pytest
from click.testing import CliRunner

from moexray.faces.cli.timeline import command
from trace_samples import Trace, pair_of_ranks


def run(*args):
    return CliRunner().invoke(command, [str(a) for a in args])


def document(*args):
    result = run(*args, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.fixture
def ranks(tmp_path):
    """Rank 1 computes 3 ms longer in each step and its clock is 250 us ahead."""
    for trace in pair_of_ranks(late_us=3000.0, shift_us=250.0):
        trace.write(tmp_path / f"rank{trace.rank}.json")
    return tmp_path


def test_the_late_rank_its_lateness_and_the_clocks(ranks):
    doc = document(ranks)
    assert doc["schema"] == "moexray.timeline/1"
    first, second = sorted(doc["ranks"], key=lambda r: r["rank"])
    assert (first["clock_offset_ns"], second["clock_offset_ns"]) == (0, 250_000)
    assert second["clock_error_ns"] <= 1
    assert {c["late_rank"] for c in doc["collectives"]} == {1}
    for c in doc["collectives"]:
        assert c["lateness_s"] == pytest.approx(3e-3)
        assert c["transfer_s"] == pytest.approx(2e-3)
        assert c["bytes"] == 2 * 4096  # elements of bf16
        assert c["edges_ok"] is None


def test_exposed_communication_and_who_waited_for_whom(ranks):
    first, second = sorted(document(ranks)["ranks"], key=lambda r: r["rank"])
    assert first["exposed_communication_s"] == pytest.approx(12 * 5e-3)  # 3 ms of waiting, 2 ms of transfer
    assert second["exposed_communication_s"] == pytest.approx(12 * 2e-3)
    assert (first["waited_s"], first["waited_most_for"]) == (pytest.approx(12 * 3e-3), 1)
    assert (second["waited_s"], second["others_waited_s"]) == (pytest.approx(0), pytest.approx(12 * 3e-3))
    text = run(ranks).output
    assert "computes 66%, communicates alone 33%, idle 1%: it waits 36.0 ms in collectives, most for rank 1" in text
    assert "the others wait 36.0 ms for it, so look at what it does before it comes" in text


def test_communication_behind_compute_is_not_exposed(tmp_path):
    trace = Trace(0, 2)
    for step in range(4):
        trace.step(step, step * 1000, 990).kernel(step * 1000 + 20, 800)
        trace.collective(step, step * 1000 + 120, 800)
    trace.write(tmp_path / "t.json")
    (rank,) = document(tmp_path)["ranks"]
    assert rank["communication_s"] == pytest.approx(4 * 800e-6)
    assert rank["exposed_communication_s"] == pytest.approx(4 * 100e-6)
    assert rank["waited_s"] is None
    assert "(and 72% behind compute)" in run(tmp_path).output


def test_copies_are_no_compute(tmp_path):
    trace = Trace(0, 1).kernel(0, 100)
    trace.slice("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 100, 900, pid=0, tid=7, device=0, stream=7)
    trace.write(tmp_path / "t.json")
    (rank,) = document(tmp_path)["ranks"]
    assert (rank["compute_s"], rank["copies_alone_s"]) == (pytest.approx(1e-4), pytest.approx(9e-4))
    assert "computes 10%, copies alone 90%" in run(tmp_path).output


@pytest.mark.parametrize("stacks", [False, True])
def test_a_device_that_waits_for_its_host_is_cpu_bound(tmp_path, stacks):
    trace = Trace(0, 1)
    for i in range(20):
        trace.slice("cpu_op", "aten::mul", i * 100, 95).kernel(i * 100 + 90, 20, launch=i * 100 + 80)
    (tmp_path / "t.json").write_text(json.dumps({**trace.document(), "with_stack": int(stacks)}))
    (line,) = [x for x in run(tmp_path).output.splitlines() if "computes" in x]
    assert ("CPU-bound" in line, "profiled with stacks" in line) == (True, stacks)


def test_every_stream_and_step_adds_up(ranks):
    doc = document(ranks)
    for s in doc["streams"]:
        parts = sum(s["host"].values()) + sum(s["device"].values()) + s["unexplained_ns"]
        assert s["busy_ns"] + parts == s["span_ns"]
    assert len(doc["steps"]) == 24
    for s in doc["steps"]:
        parts = sum(s["host"].values()) + sum(s["device"].values()) + s["unexplained_ns"]
        assert s["busy_ns"] + parts + s["outside_ns"] == s["dur_ns"]
        assert s["outside_ns"] >= 0


def test_edges_of_an_uneven_exchange(tmp_path):
    sent = [[3, 1], [2, 4]]
    for wrong in (False, True):
        for rank in range(2):
            trace = Trace(rank, 2).step(0, 0, 200)
            expected = [sent[0][rank], sent[1][rank]]
            if wrong and rank == 1:
                expected[0] += 1
            more = {"In split size": str(sent[rank]), "Out split size": str(expected)}
            trace.collective(1, 100, 50, op="all_to_allv", **more).write(tmp_path / f"rank{rank}.json")
        [found] = document(tmp_path)["collectives"]
        assert found["edges_ok"] is not wrong
        assert ("EDGES DO NOT FIT" in run(tmp_path).output) is wrong


def test_text_names_rank_causes_and_clock(ranks):
    text = run(ranks).output
    assert "rank 1 came last, the first waited 3.0 ms" in text
    assert "clock 250.0 µs off the first rank's" in text
    assert "longest gaps of the main streams" in text
    assert "  rank 1: 12 times, the first to come waited 36.0 ms in sum" in text
    assert text.count("off the first rank's") == 1  # the first rank has nothing to be compared with


def test_two_devices_of_one_file_are_told_apart(tmp_path):
    trace = Trace().kernel(0, 100).kernel(300, 100)
    for at, length in ((0, 50), (400, 100)):
        trace.slice("kernel", "other", at, length, pid=1, tid=9, device=1, stream=9)
    path = trace.write(tmp_path / "t.json")
    doc = document(path)
    assert {(g["device_index"], g["stream"]) for g in doc["gaps"]} == {(0, 7), (1, 9)}
    [rank] = doc["ranks"]
    assert rank["device_index"] is None  # one row for both
    text = run(path).output
    assert "device 0, stream 7: 200.0 µs before" in text
    assert "device 1, stream 9: 350.0 µs before" in text


def test_a_long_gap_names_what_released_it(tmp_path):
    trace = Trace().kernel(0, 100).kernel(50, 450, "ncclDevKernel_AllReduce", stream=20).kernel(503, 10, launch=20)
    doc = document(trace.write(tmp_path / "t.json"))
    [gap] = doc["gaps"]
    assert gap["device"] == {"released_by_comm": 403_000}
    assert gap["released_by"] == "ncclDevKernel_AllReduce"


@pytest.mark.parametrize("content", ["", "{}", '{"traceEvents": []}', "not a trace"])
def test_no_trace_is_an_error(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    result = run(path)
    assert result.exit_code == 2
    assert "x.json" in result.output
    assert "Traceback" not in result.output
