"""`moexray memory` on snapshots built by hand: every figure is worked out in the comments."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from moexray.faces.cli.main import main
from snapshot_samples import BASE, MIB, document, event, segment, step_marks, temporary, whole, write

GAP = 1 << 30


def memory(*arguments, code=0):
    result = CliRunner().invoke(main, ["memory", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def as_json(*arguments):
    return json.loads(memory(*arguments, "--format", "json"))


@pytest.fixture
def file(tmp_path):
    """One segment of 120 MiB: 60 free, 10 live, 30 free, 20 live."""
    return write(tmp_path / "s.pickle", document([segment(BASE, [(60 * MIB, "f"), (10 * MIB, "a"), (30 * MIB, "f"), (20 * MIB, "a")])]))


def test_figures_by_hand(file):
    found = as_json(file, "--request", "25.6MiB", "--request", "31MiB", "--request", "61MiB")
    assert found["schema"] == "moexray.memory/1"
    [pool] = found["pools"]
    assert (pool["device"], pool["pool"], pool["stream"]) == (0, [0, 0], 0)
    assert (pool["reserved_bytes"], pool["active_bytes"]) == (120 * MIB, 30 * MIB)
    assert pool["free_bytes"] == pool["stuck_bytes"] == 90 * MIB
    assert pool["largest_free_bytes"] == 60 * MIB
    assert pool["fragmentation_ratio"] == pytest.approx(1 - 60 / 90)
    assert pool["ratio_of_all"] == pytest.approx(1 - 60 / 120)
    # 25.6 MiB: both holes serve, 2 + 1 fit; 31 MiB: the hole of 60 only; 61 MiB: nothing
    curve = [(r["share"], r["count"]) for r in found["servability"]]
    assert curve == [(1.0, 3), (pytest.approx(60 / 90), 1), (0.0, 0)]
    assert (found["lifetimes"], found["reuse_plans"]) == ([], [])


def test_nothing_free_has_the_ratio_0_and_no_curve(tmp_path):
    path = write(tmp_path / "s.pickle", document([segment(BASE, [(20 * MIB, "a")])]))
    found = as_json(path)
    assert found["pools"][0]["fragmentation_ratio"] == 0
    assert {r["share"] for r in found["servability"]} == {0.0}
    assert "can serve a request" not in memory(path)


def test_pools_streams_and_devices_lend_nothing_to_each_other(tmp_path):
    rows = [
        segment(BASE, [(10 * MIB, "a"), (30 * MIB, "f")]),
        segment(BASE + GAP, [(20 * MIB, "f")], stream=7),
        segment(BASE + 2 * GAP, [(8 * MIB, "f"), (4 * MIB, "p")], pool=(0, 3)),
        segment(BASE, [(2 * MIB, "f")], device=1, kind="small"),
    ]
    found = as_json(write(tmp_path / "s.pickle", document(rows)))
    told = [(p["device"], p["pool"], p["stream"], p["free_bytes"] // MIB, p["stuck_bytes"] // MIB) for p in found["pools"]]
    assert told == [(0, [0, 0], 0, 30, 30), (0, [0, 0], 7, 20, 0), (0, [0, 3], 0, 8, 8), (1, [0, 0], 0, 2, 0)]
    device = found["devices"][0]
    assert (device["reserved_bytes"], device["largest_free_bytes"]) == (72 * MIB, 30 * MIB)
    assert device["fragmentation_ratio"] == pytest.approx(1 - 30 / 58)
    assert found["pools"][3]["small"]["free_bytes"] == 2 * MIB
    text = memory(write(tmp_path / "s.pickle", document(rows)))
    assert "default pool, stream 7" in text
    assert "private pool (0, 3)" in text


def test_whole_pages_of_expandable_segments_are_not_stuck(tmp_path):
    # large pages are 20 MiB: of the hole from 10 to 70 MiB the pages 20-40 and 40-60 can be unmapped
    blocks = [(10 * MIB, "a"), (60 * MIB, "f"), (10 * MIB, "a")]
    found = as_json(write(tmp_path / "s.pickle", document([segment(BASE, blocks, expandable=True)])))
    assert (found["pools"][0]["free_bytes"], found["pools"][0]["stuck_bytes"]) == (60 * MIB, 20 * MIB)
    # with pages of 30 MiB only 30-60
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,large_segment_size_mb:30"}
    doc = document([segment(BASE, blocks, expandable=True)], settings=conf)
    assert as_json(write(tmp_path / "t.pickle", doc))["pools"][0]["stuck_bytes"] == 30 * MIB


def test_hot_zones_and_the_small_block_filter(tmp_path):
    # site 1 pins both segments, alone the second one; site 2 has one large block in the first
    first = segment(BASE, [(512, "a", 100), (30 * MIB - 512, "f"), (10 * MIB, "a")])
    first["blocks"][2]["frames"] = [{"name": "load", "filename": "/srv/app/load.py", "line": 9}]
    second = segment(BASE + GAP, [(512, "a", 200), (50 * MIB - 512, "f")])
    trace = [
        event("alloc", BASE, 100, 1),
        event("alloc", BASE + GAP, 200, 2),
        *(event("alloc", BASE + MIB + 512 * i, 60, 3 + i) for i in range(9)),
        event("free_requested", BASE + MIB, 60, 20),
        event("free_completed", BASE + MIB, 60, 21),
    ]
    path = write(tmp_path / "s.pickle", document([first, second], trace))
    stuck = 80 * MIB - 1024
    tiny, load = as_json(path)["hot_zones"]
    assert tiny["site"] == "srv/app/model.py:1 run"
    assert (tiny["count"], tiny["frees"], tiny["live_blocks"]) == (11, 1, 2)
    assert tiny["mean_bytes"] == pytest.approx((100 + 200 + 9 * 60) / 11)
    assert (tiny["stuck_bytes"], tiny["alone_bytes"]) == (stuck, 50 * MIB - 512)
    assert (tiny["fragmentation_index"], tiny["small_blocks"]) == (1.0, True)
    assert (load["site"], load["count"], load["stuck_bytes"]) == ("srv/app/load.py:9 load", 0, 30 * MIB - 512)
    assert (load["alone_bytes"], load["small_blocks"]) == (0, False)
    assert load["fragmentation_index"] == pytest.approx((30 * MIB - 512) / stuck)
    text = memory(path)
    assert "small blocks that stay (below 256 B, alloc:free above 5:1" in text
    assert "11:1 at srv/app/model.py:1 run" in text
    assert "small blocks" not in memory(path, "--small-ratio", "11")
    assert "small blocks" not in memory(path, "--small-block", "50")
    limits = tmp_path / "limits.toml"
    limits.write_text("[snapshot]\nsmall_alloc_free_ratio = 12\n", encoding="utf-8")
    assert "small blocks" not in memory(path, "--limits", limits)


def test_without_a_history_zones_count_live_blocks(tmp_path):
    [zone] = as_json(write(tmp_path / "s.pickle", document([segment(BASE, [(4 * MIB, "a"), (8 * MIB, "a")])])))["hot_zones"]
    assert (zone["count"], zone["allocs"], zone["mean_bytes"]) == (2, None, 6 * MIB)


def test_the_operator_and_the_frames_are_shown(tmp_path):
    row = segment(BASE, [(4 * MIB, "a"), (4 * MIB, "f")])
    row["blocks"][0]["frames"] = [
        {"name": "at::_ops::empty::call(int)", "filename": "??", "line": 0},
        {"name": "at::_ops::mm::call(int)", "filename": "??", "line": 0},
        {"name": "forward", "filename": "/x/torch/nn/linear.py", "line": 5},
        {"name": "mlp", "filename": "/srv/app/moe.py", "line": 6},
        {"name": "step", "filename": "/srv/app/run.py", "line": 7},
    ]
    path = write(tmp_path / "s.pickle", document([row]))
    assert "srv/app/moe.py:6 mlp [aten::mm]" in memory(path)
    assert "srv/app/moe.py:6 mlp < srv/app/run.py:7 step [aten::mm]" in memory(path, "--depth", "2")


def churning(count, together=1):
    """`together` buffers of 3 MiB in each step of 1,000 us, freed again, and one of a size of its own."""
    out = []
    for i in range(count):
        at = 1_000_000 + 1000 * i
        out += [event("alloc", BASE + 4 * MIB * k, 3 * MIB, at + k, 5) for k in range(together)]
        out += [event("free_completed", BASE + 4 * MIB * k, 3 * MIB, at + 20 + k, 5) for k in range(together)]
        out += temporary(BASE + 40 * MIB, (i + 1) * 512, 6, at + 50)
    return out


@pytest.mark.parametrize("marked", ["annotations", "user_metadata", "snapshot events"])
def test_churn_in_marked_steps(tmp_path, marked):
    trace, marks = churning(20, together=2), ()
    if marked == "annotations":
        marks = step_marks(20)
    elif marked == "user_metadata":
        trace = [{**e, "user_metadata": f"step {(e['time_us'] - 1_000_000) // 1000}"} for e in trace]
    else:
        seams = [event("snapshot", 0, 0, 1_000_000 + 1000 * i - 1) for i in range(21)]
        trace = sorted([*trace, *seams], key=lambda e: e["time_us"])
    path = write(tmp_path / "s.pickle", whole([segment(BASE, [(64 * MIB, "f")])], trace, marks=marks))
    [found] = as_json(path)["churn"]
    assert (found["site"], found["size_bytes"]) == ("srv/app/model.py:5 run", 3 * MIB)
    assert (found["marked_by"], found["steps"], found["steps_with"]) == (marked, 20, 20)
    # two buffers are kept: of 40 allocs and 40 frees two allocs remain
    assert (found["allocs"], found["calls_saved"], found["buffer_bytes"]) == (40, 78, 6 * MIB)
    assert found["bytes_saved"] == 38 * 3 * MIB
    assert f"steps marked by {marked}" in memory(path)


def test_churn_without_marks_is_told_by_regular_repeats(tmp_path):
    seg = segment(BASE, [(64 * MIB, "f")])
    assert [r["marked_by"] for r in as_json(write(tmp_path / "a.pickle", whole([seg], churning(20))))["churn"]] == [None]
    assert as_json(write(tmp_path / "b.pickle", whole([seg], churning(7))))["churn"] == []  # below churn_steps


def test_diff_signs_new_gone_and_leak_candidates(tmp_path):
    def line(seg, index, number):
        seg["blocks"][index]["frames"] = [{"name": "f", "filename": "/srv/app/x.py", "line": number}]

    before = segment(BASE, [(10 * MIB, "a"), (4 * MIB, "a"), (50 * MIB, "f")])
    after = segment(BASE, [(10 * MIB, "a"), (4 * MIB, "f"), (2 * MIB, "a"), (48 * MIB, "f")])
    line(before, 1, 7)  # gone
    line(after, 2, 8)  # new
    more = segment(BASE + GAP, [(6 * MIB, "a"), (14 * MIB, "f")], stream=3)
    line(more, 0, 8)  # new, the same site
    a, b = write(tmp_path / "a.pickle", document([before])), write(tmp_path / "b.pickle", document([after, more]))
    [entry] = as_json(a, b, "--diff")["diff"]
    assert (entry["sign"], entry["same_process"]) == ("after - before", True)
    assert entry["total"]["reserved_bytes"] == {"before": 64 * MIB, "after": 84 * MIB, "change": 20 * MIB}
    assert entry["total"]["stuck_bytes"]["change"] == 16 * MIB  # 52 + 14 - 50
    # largest 48 of 66 free, before 50 of 50
    assert entry["total"]["fragmentation_ratio"]["change"] == pytest.approx(1 - 48 / 66)
    assert [(p["stream"], p["active_bytes"]["change"] // MIB) for p in entry["pools"]] == [(0, -2), (3, 6)]
    sites = {s["site"]: (s["change_bytes"] // MIB, s["new_blocks"], s["gone_blocks"]) for s in entry["sites"]}
    assert sites == {"srv/app/x.py:8 f": (8, 2, 0), "srv/app/model.py:1 run": (0, 0, 0), "srv/app/x.py:7 f": (-4, 0, 1)}
    assert entry["leak_candidates"] == ["srv/app/x.py:8 f"]
    text = memory(a, b, "--diff")
    assert "+8.0 MiB  0 -> 2 blocks (2 new, 0 gone): srv/app/x.py:8 f" in text
    assert "leak candidates (grew and let go of next to nothing" in text
    back = memory(b, a, "--diff")
    assert "-8.0 MiB  2 -> 0 blocks (0 new, 2 gone): srv/app/x.py:8 f" in back
    [same] = as_json(a, a, "--diff")["diff"]
    assert not any(v["change"] for v in same["total"].values())
    assert "no change" in memory(a, a, "--diff")


def test_diff_of_two_processes_counts_no_new_blocks(tmp_path):
    a = write(tmp_path / "a.pickle", document([segment(BASE, [(10 * MIB, "a")])]))
    b = write(tmp_path / "b.pickle", document([segment(BASE + GAP, [(30 * MIB, "a")])]))
    [entry] = as_json(a, b, "--diff")["diff"]
    assert (entry["same_process"], entry["leak_candidates"], entry["sites"][0]["new_blocks"]) == (False, [], None)
    assert "different processes" in memory(a, b, "--diff")


def test_what_proves_one_process(tmp_path):
    seg = segment(BASE, [(10 * MIB, "a"), (10 * MIB, "f")])
    early = temporary(BASE + 10 * MIB, 512, 3, 1_000)
    late = [*early, *temporary(BASE + 10 * MIB, 1024, 4, 2_000)]
    other = temporary(BASE + 10 * MIB, 512, 3, 1_001)
    fresh = [event("segment_alloc", BASE, 20 * MIB, 5_000), event("alloc", BASE, 10 * MIB, 5_001)]
    cases = {
        "share their events": (early, late, True),
        "other events at the same time": ([*early, *temporary(BASE + 10 * MIB, 9, 9, 1_005)], [*other, *temporary(BASE, 9, 9, 1_010)], False),
        "begins with nothing": (early, fresh, False),
        "two runs of one program": (early, temporary(BASE + 10 * MIB, 512, 3, 9_000), True),
    }  # fmt: skip
    for words, (first, second, same) in cases.items():
        a = write(tmp_path / "a.pickle", document([seg], first, overflowed=False))
        b = write(tmp_path / "b.pickle", document([seg], second, overflowed=False))
        [entry] = as_json(a, b, "--diff")["diff"]
        assert words in entry["same_process_why"]
        assert entry["same_process"] is same, words


def test_diff_wants_two_snapshots_of_one_rank(tmp_path, file):
    assert "compares two snapshots, 1 given" in memory(file, "--diff", code=2)
    a, b = (write(tmp_path / f"s_rank{r}.pickle", document([segment(BASE, [(MIB, "a")], device=r), segment(BASE, [(MIB, "a")], device=9 - r)])) for r in (0, 1))
    assert "no device is in both" in memory(a, b, "--diff", code=2)


def test_unsound_segments_are_left_out_and_said(tmp_path):
    broken = {**segment(BASE + GAP, [(10 * MIB, "a")]), "total_size": 7}
    path = write(tmp_path / "s.pickle", document([segment(BASE, [(10 * MIB, "f")]), broken]))
    assert as_json(path)["pools"][0]["reserved_bytes"] == 10 * MIB
    text = memory(path)
    assert "left out, they contradict themselves: 1 segment" in text
    assert "fault: segment at" in text


def test_every_number_of_the_json_is_finite(file):
    def walk(value):
        if isinstance(value, dict):
            return all(map(walk, value.values()))
        if isinstance(value, list):
            return all(map(walk, value))
        return not isinstance(value, float) or math.isfinite(value)

    assert walk(as_json(file))


def test_bad_input_says_what_and_what_to_try(tmp_path, file):
    log = tmp_path / "x.log"
    log.write_text("hello\n")
    assert "no allocator snapshot" in memory(log, code=2)
    assert "does not exist" in memory("no/such", code=2)
    assert "is no size; write 80GiB" in memory(file, "--request", "0.025", code=2)
    report = tmp_path / "r.html"
    report.write_text("mine")
    assert "exists" in memory(file, "--report", report, code=2)
    assert "no folder" in memory(file, "--report", tmp_path / "no" / "r.html", code=2)
    assert report.read_text() == "mine"


SHARED = Path(__file__).resolve().parents[3] / "shared/data"
TABLE = SHARED / "memory/README.md"


def published():
    """File, and the figures that another tool found, from the table beside the files."""
    if not TABLE.is_file():
        return []
    rows = [[c.strip() for c in line.strip().strip("|").split("|")] for line in TABLE.read_text(encoding="utf-8").splitlines()]
    head = next(r for r in rows if r[0] == "file")
    known = [dict(zip(head, r, strict=True)) for r in rows if len(r) == len(head) and ".pickle" in r[0]]
    return [pytest.param(r, id=r["file"].partition(".")[0]) for r in known]


@pytest.mark.skipif(not TABLE.is_file(), reason="the shared data lie beside the checkout; they do not here")
@pytest.mark.parametrize("row", published())
def test_figures_of_real_files_agree_with_another_tool(row):
    found = as_json(SHARED / "memory" / row["file"])
    [pool] = found["pools"]
    assert pool["reserved_bytes"] == int(row["reserved bytes"])
    assert pool["active_bytes"] == int(row["active bytes"])
    assert pool["segments"] == int(row["segments"])
    assert pool["free_bytes"] == int(row["free bytes in segments"])
    assert pool["largest_free_bytes"] == int(row["largest free block"])
    assert pool["stuck_bytes"] == int(row["free bytes in partly used segments"])
    assert pool["fragmentation_ratio"] == pytest.approx(float(row["fragmentation 1-largest/total"]), abs=6e-5)
    # laws: segments add up to the pool; zones hold every live byte; the curve falls
    assert sum(s["total_bytes"] for s in found["segments"]) == pool["reserved_bytes"]
    assert sum(z["live_bytes"] for z in found["hot_zones"]) == pool["active_bytes"]
    shares = [r["share"] for r in found["servability"]]
    assert shares == sorted(shares, reverse=True)
    assert all(0 <= z["alone_bytes"] <= z["stuck_bytes"] <= pool["stuck_bytes"] for z in found["hot_zones"])


def test_the_report_is_named_on_standard_error_only(file, tmp_path):
    page = tmp_path / "r.html"
    result = CliRunner().invoke(main, ["memory", str(file), "--report", str(page)])
    assert result.stderr == f"written: {page}\n"
    assert "written" not in result.stdout
    assert "next: moexray diagnose" in result.stdout  # without history there is nothing to replay
    refused = memory(file, "--report", page, code=2)
    assert "r.html exists\n  try:   --force overwrites it" in refused


@pytest.mark.skipif(not TABLE.is_file(), reason="the shared data lie beside the checkout; they do not here")
@pytest.mark.parametrize("folder", sorted(SHARED.glob("incidents/*/memory")), ids=lambda p: p.parent.name)
def test_incidents_are_told_and_drawn(folder, tmp_path):
    found = as_json(folder, "--report", tmp_path / "r.html")
    assert len(found["devices"]) == len(list(folder.glob("*.pickle")))
    assert {p["pool"][0] for p in found["pools"]} == {0}
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count('data-chart="map"') == len(found["devices"])
    assert memory(folder).count("\npool  ") == len(found["devices"])
