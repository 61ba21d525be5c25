"""`moexray export perfetto`: one trace on one clock, with our tracks."""

import gzip
import json
import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from moexray.faces.cli.export import command
from trace_samples import pair_of_ranks


def run(*args):
    return CliRunner().invoke(command, ["perfetto", *map(str, args)])


@pytest.fixture
def folder(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    for t in pair_of_ranks(late_us=3000.0, shift_us=250.0, gap=(5,), record=("cuda_runtime", "cudaFree")):
        t.write(source / f"rank{t.rank}.json")
    return source


def exported(path):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        return json.load(file)["traceEvents"]


def test_all_slices_are_there_on_the_clock_of_the_first_rank(folder, tmp_path):
    result = run(folder, "-o", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    found = exported(tmp_path / "out.json")
    names = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert {"rank 0", "rank 1", "moexray: rank 0", "moexray: rank 1", "moexray: findings"} <= set(names.values())
    ends = {}
    for e in found:
        if e["ph"] == "X" and e["name"].startswith("ncclDevKernel"):
            ends.setdefault(names[e["pid"]], []).append(e["ts"] + e["dur"])
    assert ends["rank 0"] == pytest.approx(ends["rank 1"], abs=1)


def test_our_tracks_name_the_late_rank_and_the_cause(folder, tmp_path):
    run(folder, "-o", tmp_path / "out.json.gz")
    found = exported(tmp_path / "out.json.gz")
    texts = {e["name"] for e in found if e["ph"] == "X"}
    assert any(t.startswith("waits for rank 1 in") for t in texts)
    assert {"allocator", "step 0", "comm.straggler_wait"} <= texts
    claims = [e["args"]["claim"] for e in found if e["name"] == "comm.straggler_wait"]
    assert "rank 1" in claims[0]


def test_slices_of_a_track_of_ours_do_not_overlap(folder, tmp_path):
    run(folder, "-o", tmp_path / "out.json")
    tracks = {}
    for e in exported(tmp_path / "out.json"):
        if e["ph"] == "X" and e["pid"] > 1_000_000 and e["pid"] < 2_000_000:
            tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    assert tracks
    for slices in tracks.values():
        ranked = sorted(slices)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(ranked))


def test_a_file_is_not_overwritten_and_a_failure_leaves_none(folder, tmp_path):
    path = tmp_path / "out.json"
    path.write_text("mine")
    assert run(folder, "-o", path).exit_code == 2
    assert path.read_text() == "mine"
    assert run(folder, "-o", path, "--force").exit_code == 0
    assert run(folder, "-o", tmp_path / "no" / "out.json").exit_code == 2
    assert not list(tmp_path.glob("*.part"))


def test_nothing_to_draw_is_an_error(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("INFO 06-12 engine: Avg prompt throughput: 1.0 tokens/s, Running: 1 reqs\n")
    result = run(log, "-o", tmp_path / "out.json")
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_device_or_pipe_is_written_to_and_never_replaced(folder, tmp_path):
    """`-o /dev/stdout --force` and the like: a file beside it must not take its place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    result = CliRunner().invoke(command, ["perfetto", str(folder), "-o", str(pipe), "--force"])
    reader.join(timeout=20)
    assert result.exit_code == 0, result.output
    assert pipe.is_fifo()
    assert json.loads(got[0])["traceEvents"]


def test_a_full_disk_is_told(folder):
    if not Path("/dev/full").is_char_device():
        pytest.skip("this system has no /dev/full")
    result = CliRunner().invoke(command, ["perfetto", str(folder), "-o", "/dev/full", "--force"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "/dev/full cannot be written (No space left on device)" in result.stderr
    assert Path("/dev/full").is_char_device()
