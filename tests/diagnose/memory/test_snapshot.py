"""Rules over allocator snapshots: each with a positive case and a near miss, numbers worked by hand."""

import json
from pathlib import Path

import pytest

from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_any
from snapshot_samples import (
    BASE,
    GIB,
    MIB,
    document,
    event,
    segment,
    step_marks,
    temporary,
    whole,
    write,
)


def findings(*paths):
    return {f.id: f for f in diagnose(read_any([str(p) for p in paths])).findings}


def says(tmp_path, doc, name="s.pickle"):
    return findings(write(tmp_path / name, doc))


# ---- mem.fragmentation: stuck >= 1 GiB and >= 25 % of what the pool reserves


def halves(count, size=GIB, live=512 * MIB):
    """Segments of 1 GiB, half of each free behind a live half."""
    return [segment(BASE + i * 2 * GIB, [(live, "a"), (size - live, "f")]) for i in range(count)]


def test_stuck_bytes_are_fragmentation(tmp_path):
    found = says(tmp_path, whole(halves(3)))
    f = found["mem.fragmentation"]
    assert (f.value, f.limit, f.unit, f.severity) == (1536 * MIB, GIB, "bytes", "warn")
    assert "stranded_bytes=1610612736 reserved_bytes=3221225472" in f.evidence[0].text
    assert "largest_free_block_bytes=536870912" in f.evidence[0].text
    assert "one_minus_largest_to_free_ratio=0.666667" in f.evidence[0].text
    assert {r.id for r in f.remedies} >= {"expandable-segments", "max-split-size", "gc-threshold"}
    assert list(found) == ["mem.fragmentation"]


@pytest.mark.parametrize(
    "segments",
    [
        halves(1),  # 512 MiB stuck
        [*halves(3), segment(BASE + 64 * GIB, [(5 * GIB, "a")])],  # 1.5 GiB of 8: 18.75 %
        [segment(BASE + i * 2 * GIB, [(GIB, "f")]) for i in range(8)],  # whole segments can go back
        [segment(BASE, [(512 * MIB, "a"), (512 * MIB, "f")]), *[segment(BASE + (i + 1) * GIB, [(20 * MIB, "f")]) for i in range(60)]],
    ],
)
def test_near_misses_of_fragmentation(tmp_path, segments):
    assert says(tmp_path, whole(segments)) == {}


def test_what_can_go_back_is_ruled_out_with_numbers(tmp_path):
    run = read_any([write(tmp_path / "s.pickle", whole([segment(BASE + i * 2 * GIB, [(GIB, "f")]) for i in range(8)]))])
    assert "only 0 B lie beside live blocks" in diagnose(run).ruled_out[0].claim


def test_one_thin_segment_is_enough(tmp_path):
    thin = segment(BASE, [(50 * MIB, "a"), (974 * MIB, "f")])  # 4.9 % active
    heavy = segment(BASE + 4 * GIB, [(8 * GIB, "a")])
    f = says(tmp_path, whole([thin, heavy]))["mem.fragmentation"]
    assert "1,073,741,824 B is 4.9% active" in f.claim
    assert any("active_share=0.0488281" in e.text for e in f.evidence)
    tenth = segment(BASE, [(110 * MIB, "a"), (914 * MIB, "f")])  # 10.7 %
    assert says(tmp_path, whole([tenth, heavy])) == {}


def test_before_and_after_in_json_and_pickle(tmp_path):
    def old(blocks):
        s = segment(BASE, blocks)
        for key in ("stream", "frames", "segment_pool_id", "is_expandable", "requested_size"):
            del s[key]
        s["blocks"] = [{k: b[k] for k in ("size", "state")} for b in s["blocks"]]
        return [s]

    before, after = old([(11 * GIB, "f")]), old([(100 * MIB, "a"), (4 * GIB, "f"), (100 * MIB, "a"), (7 * GIB - 200 * MIB, "f")])
    (tmp_path / "b.json").write_text(json.dumps(before))
    (tmp_path / "a.json").write_text(json.dumps(after))
    write(tmp_path / "a.pickle", after)
    found = findings(tmp_path)
    assert list(found) == ["mem.fragmentation"]
    assert "In b.json the same segment was whole and free" in found["mem.fragmentation"].claim


def test_pages_of_expandable_segments_can_go_back(tmp_path):
    def holes(size):
        return [segment(BASE, [(size, "a"), (size, "f")] * (4 * GIB // size), expandable=True)]

    assert says(tmp_path, whole(holes(512 * MIB), settings={"expandable_segments": True})) == {}
    f = says(tmp_path, whole(holes(16 * MIB), settings={"expandable_segments": True}))["mem.fragmentation"]
    assert f.value > 3 * GIB
    assert [r.id for r in f.remedies] == ["snapshot-move-pins"]  # expandable segments are on already


@pytest.mark.parametrize("conf", ["expandable_segments:True", "max_split_size_mb:128, expandable_segments : True"])
def test_a_setting_in_force_is_not_proposed(tmp_path, conf):
    doc = whole(halves(3), settings={"expandable_segments": False, "PYTORCH_CUDA_ALLOC_CONF": conf})
    f = says(tmp_path, doc)["mem.fragmentation"]
    assert not any("expandable_segments:True" in r.action for r in f.remedies)


def test_two_processes_of_one_name_stay_apart(tmp_path):
    for folder, doc in (("x", whole(halves(3))), ("y", whole(halves(1)))):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "snapshot_rank3.pickle", doc)
    f = findings(tmp_path / "x", tmp_path / "y")["mem.fragmentation"]
    assert (f.subject.rank, f.subject.device, f.value) == (3, 0, 1536 * MIB)


# ---- mem.graph_pool_fragmentation: >= 256 MiB and >= 25 % of a private pool


@pytest.mark.parametrize(("free", "said"), [(300, True), (250, False)])
def test_private_pools(tmp_path, free, said):
    doc = whole([segment(BASE, [(GIB, "a")]), segment(BASE + 2 * GIB, [(400 * MIB, "a"), (free * MIB, "f")], pool=(0, 1))])
    found = says(tmp_path, doc)
    assert set(found) == ({"mem.graph_pool_fragmentation"} if said else set())
    if said:
        f = found["mem.graph_pool_fragmentation"]
        assert f.value == 300 * MIB
        assert "empty_cache" in f.remedies[0].caveats
    share = whole([segment(BASE + 2 * GIB, [(GIB, "a"), (300 * MIB, "f")], pool=(0, 1))])  # 22.7 %
    assert says(tmp_path, share) == {}


# ---- snapshot.history_incomplete


def test_kinds_of_history(tmp_path):
    s = [segment(BASE, [(512 * MIB, "a"), (512 * MIB, "f")])]
    cases = {
        "never enabled": (document(s), "info"),
        "ring of one entry": (document(s, [event("snapshot", 0, 512 * MIB)]), "info"),
        "has wrapped": (document(s, [event("alloc", BASE, 512 * MIB, 1)], overflowed=True), "warn"),
        "began after": (document(s, [event("alloc", BASE, 512 * MIB, 1)]), "warn"),
        "is unknown": (document(s, [event("alloc", BASE, 512 * MIB, 1)], overflowed=None), "warn"),
    }
    for words, (doc, severity) in cases.items():
        f = says(tmp_path, doc)["snapshot.history_incomplete"]
        assert words in f.claim, words
        assert f.severity == severity
        assert "512.0 MiB stuck of 1.00 GiB reserved" in f.claim
        assert "no allocations" not in f.claim


def test_an_old_format_that_explains_its_end_cannot_tell(tmp_path):
    doc = whole([segment(BASE, [(GIB, "a")])], overflowed=None)
    del doc["allocator_settings"], doc["external_annotations"]
    f = says(tmp_path, doc)["snapshot.history_incomplete"]
    assert f.cannot_tell
    assert f.settle_with


@pytest.mark.parametrize("flag", [False, None])
def test_a_whole_history_says_nothing(tmp_path, flag):
    s = [segment(BASE, [(512 * MIB, "a", 500 * MIB), (512 * MIB, "f")])]
    assert says(tmp_path, whole(s, temporary(BASE + 512 * MIB, 3 * MIB, 2), overflowed=flag)) == {}


def test_a_bare_list_has_no_place_for_a_history(tmp_path):
    assert says(tmp_path, [segment(BASE, [(GIB, "a")])]) == {}


def test_events_missing_in_the_middle(tmp_path):
    s = [segment(BASE, [(GIB, "a")])]
    lost = [event("alloc", BASE + i, 512 * MIB, 5) for i in range(6)]  # allocated, never freed, not there
    f = says(tmp_path, whole(s, lost))["snapshot.history_incomplete"]
    assert "fall below zero" in f.claim


def test_several_files_are_told_apart_in_one_finding(tmp_path):
    s = [segment(BASE, [(GIB, "a")])]
    write(tmp_path / "one.pickle", document(s))
    write(tmp_path / "two.pickle", document(s, [event("alloc", BASE, GIB, 1)], overflowed=True))
    f = findings(tmp_path)["snapshot.history_incomplete"]
    assert f.severity == "warn"
    assert "one.pickle: the history was never enabled" in f.claim
    assert "two.pickle: the history has wrapped" in f.claim


# ---- snapshot.inconsistent


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(total_size=2 * GIB), "its blocks add up to 1073741824 B, its size is 2147483648 B"),
        (lambda s: s.update(active_size=7 * MIB), "active_size is 7340032 B"),
        (lambda s: s["blocks"][0].update(size=-5), "below zero"),
        (lambda s: s["blocks"][0].update(state="melted"), "unknown block state 'melted'"),
        (lambda s: s["blocks"][1].update(address=BASE + 5), "leaves a gap or overlaps"),
        (lambda s: s.update(total_size="big"), "total_size is 'big'"),
    ],
)
def test_contradictions_are_named_and_left_out(tmp_path, change, words):
    sick, sound = segment(BASE, [(512 * MIB, "a"), (512 * MIB, "f")]), segment(BASE + 8 * GIB, [(GIB, "a")])
    trace = whole([sick, sound])["device_traces"][0]
    change(sick)
    found = says(tmp_path, document([sick, sound], trace))
    f = found["snapshot.inconsistent"]
    assert any(words in e.text for e in f.evidence)
    assert "The other 1 of" in f.claim
    assert "mem.fragmentation" not in found


def test_overlapping_segments(tmp_path):
    doc = whole([segment(BASE, [(GIB, "a")]), segment(BASE + 512 * MIB, [(GIB, "a")])])
    assert "overlaps the segment at" in says(tmp_path, doc)["snapshot.inconsistent"].claim


def test_known_differences_are_no_contradiction(tmp_path):
    s = segment(BASE, [(512 * MIB, "a", 500 * MIB), (256 * MIB, "p"), (256 * MIB, "f")])
    for active in (768 * MIB, 512 * MIB, 756 * MIB):
        s["active_size"] = active  # live; allocated only; requested
        assert "snapshot.inconsistent" not in says(tmp_path, whole([s]))


# ---- mem.churn and mem.small_blocks


def churning(steps, *, device, size=96 * MIB, skip=()):
    """A temporary in each step; with device calls in the steps that `device` picks."""
    out, at = [], BASE + 64 * GIB
    for i in range(steps):
        t = 1_000_000 + 1000 * i
        if i in skip:
            continue
        if device(i):
            out.append(event("segment_alloc", at, size, t, 140))
        out += temporary(at, size, 140, t + 1)
        if device(i):
            out.append(event("segment_free", at, size, t + 9, 140))
    return out


def test_churn_in_marked_steps(tmp_path):
    doc = whole([segment(BASE, [(GIB, "a")])], churning(40, device=lambda i: True), marks=step_marks(40))
    f = says(tmp_path, doc)["mem.churn"]
    assert "app/model.py:140 run" in f.claim
    assert "40 of 40 steps" in f.claim
    # the first tenth is warm-up: 36 device mallocs and 36 frees
    assert "size_bytes=100663296 steps=40 steps_with=40 device_mallocs=36 device_frees=36" in f.evidence[0].text
    assert "buffer_bytes=100663296" in f.evidence[0].text


def test_churn_without_marks_by_its_period(tmp_path):
    doc = whole([segment(BASE, [(GIB, "a")])], churning(40, device=lambda i: True))
    f = says(tmp_path, doc)["mem.churn"]
    assert f.confidence < 0.9
    assert "40 of 40 periods" in f.claim


@pytest.mark.parametrize(
    ("device", "skip"),
    [
        (lambda i: False, ()),  # cache hits only
        (lambda i: i < 2, ()),  # growth at start-up only
        (lambda i: True, range(10, 20)),  # in 75 % of the steps
    ],
)
def test_near_misses_of_churn(tmp_path, device, skip):
    cached = segment(BASE + 64 * GIB, [(96 * MIB, "f")])
    segments = [segment(BASE, [(GIB, "a")])] + ([cached] if not device(30) else [])
    doc = whole(segments, churning(40, device=device, skip=skip), marks=step_marks(40))
    assert "mem.churn" not in says(tmp_path, doc)


def test_a_working_set_that_grows_is_no_churn(tmp_path):
    grown = [segment(BASE + i * GIB, [(20 * MIB, "f")]) for i in range(40)]
    trace = [e for s in grown for e in (event("segment_alloc", s["address"], 20 * MIB), *temporary(s["address"], 20 * MIB, 3))]
    assert says(tmp_path, document(grown, trace)) == {}


def tiny(count, size=100, freed=0):
    held = [segment(BASE + i * 4 * MIB, [(512, "a", size), (2 * MIB - 512, "f")], kind="small") for i in range(count)]
    return whole(held, [e for i in range(freed) for e in temporary(BASE + 2 * GIB + 512 * i, size, 1)])


def test_small_blocks(tmp_path):
    f = says(tmp_path, tiny(200, freed=10))["mem.small_blocks"]
    assert f.severity == "info"
    assert "allocated 210 times and freed 10 times (21.0:1)" in f.claim
    assert f"stuck_bytes={200 * (2 * MIB - 512)}" in f.evidence[0].text


@pytest.mark.parametrize("doc", [tiny(200, freed=60), tiny(200, size=256), tiny(20)])
def test_near_misses_of_small_blocks(tmp_path, doc):
    """260:60 is below 5:1; 256 B are not small; 40 MiB stuck are a small-pool matter."""
    assert "mem.small_blocks" not in says(tmp_path, doc)


# ---- what is drawn


def test_exhibits(tmp_path):
    doc = whole([segment(BASE, [(512 * MIB, "a"), (512 * MIB, "f")])], churning(700, device=lambda i: True))
    result = diagnose(read_any([write(tmp_path / "s_rank2.pickle", doc)])).exhibits
    owners = {row["owner"]: row["bytes"] for row in result["ledger"]}
    assert owners == {"live, the default pool": 512 * MIB, "stuck, the default pool": 512 * MIB}
    [line] = result["series"]
    assert (line["label"], max(line["y"])) == ("reserved", GIB + 96 * MIB)
    assert len(line["x"]) <= 2002
    live, stuck = line["also"]
    assert (live["label"], live["y"][-1]) == ("live (requested bytes)", 512 * MIB)
    assert (stuck["label"], stuck["y"][-1]) == ("stuck", 512 * MIB)
    assert max(live["y"]) == 512 * MIB + 96 * MIB
    [drawn] = result["memory_map"]
    assert (drawn["rank"], drawn["name"]) == (2, "rank 2, device 0")
    assert drawn["runs"] == [[0, 512 * MIB, 0, 0], [0, 512 * MIB, 2, -1]]
    assert drawn["segments"][0]["stuck_bytes"] == 512 * MIB
    assert "of 3502 points" in line["source"]


MEMORY = Path(__file__).resolve().parents[4] / "shared/data/memory"
# stuck bytes computed by another tool (README beside the files)
STUCK = {
    "lm_a_medium_1024_training": 6721355264, "ft_c_snapshot": 1616002560, "llm_e_oom_snapshot": 4554752,
    "lm_f_mem_snapshot": 528219648, "min_h_dump_snapshot": 18190848,
}


@pytest.mark.skipif(not MEMORY.is_dir(), reason="the shared data lie beside the checkout; they do not here")
@pytest.mark.parametrize("name", STUCK)
def test_real_snapshots(name):
    from moexray.analyse.snapshot import pools, shots

    run = read_any([str(next(MEMORY.glob(name + ".*")))])
    (shot,) = shots(run)
    (pool,) = pools(shot)
    assert pool.stuck_bytes == STUCK[name]
    assert shot.faults == ()
    assert ("mem.fragmentation" in {f.id for f in diagnose(run).findings}) == (name == "lm_a_medium_1024_training")


def test_a_damaged_first_segment_costs_itself_only(tmp_path):
    found = says(tmp_path, whole(halves(3)) | {"segments": [None, *halves(3)]})
    assert found["mem.fragmentation"].value == 1536 * MIB
    assert "segment 0" in found["snapshot.inconsistent"].claim
