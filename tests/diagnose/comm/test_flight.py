"""Recorder dumps: positions, sizes, near timeouts and the set of ranks."""

import json

import pytest

from comm_samples import T0, dump, entry, finding, ids, said

WORLD = {"0": ("default_pg", [0, 1, 2, 3])}


def ring(last, *, first=1, state="completed", op="all_reduce", **more):
    """Complete entries up to last - 1, and the last one in the given state."""
    return [entry(s, op=op, **more) for s in range(first, last)] + [entry(last, op=op, state=state, **more)]


def dumps(entries_of, groups=None):
    return {f"trace_rank_{r}": dump(e, groups) for r, e in entries_of.items()}


def test_a_healthy_set_is_silent_wherever_its_rings_start():
    d = said(dumps({r: ring(24, first=f) for r, f in enumerate((5, 7, 6, 5))}))
    assert d.verdict == "none"


def test_a_rank_that_never_launched_the_number_is_missing():
    d = said(dumps({r: ring(16, state="started", op="all_to_all") for r in (0, 1, 2)} | {3: ring(15, op="all_to_all")}))
    f = finding(d, "comm.missing_rank")
    assert (d.verdict, f.subject.rank, f.severity) == ("comm.missing_rank", 3, "error")
    assert "number 16" in f.claim
    assert "after number 15" in f.claim


def test_a_slow_watchdog_of_the_missing_rank_is_no_desync():
    late = {r: ring(16, state="started") for r in (0, 1, 2)} | {3: ring(15, state="started")}
    assert ids(said(dumps(late)), strong=True) == ["comm.missing_rank"]


def test_a_suspect_without_a_dump_is_missing_and_no_gap():
    d = said(dumps({r: ring(16, state="started") for r in (0, 1, 3)}))
    f = finding(d, "comm.missing_rank")
    assert f.subject.rank == 2
    assert "left no dump, which is evidence" in f.claim
    assert "input.rank_set" not in ids(d)


def test_a_single_dump_is_a_choice():
    d = said(dumps({0: ring(16, state="started")}))
    assert ids(d, strong=True) == []


def test_a_single_dump_in_which_something_is_open_for_long_cannot_tell():
    two = {**WORLD, "1": ("tp", [0, 1])}
    entries = [*ring(3, state="started"), entry(90, group=("1", "tp"))]
    f = finding(said(dumps({0: entries}, two)), "comm.missing_rank")
    assert f.severity == "info"
    assert f.settle_with


def test_everything_complete_with_a_gap_is_a_gap():
    d = said(dumps({r: ring(16) for r in (0, 1, 3)}))
    assert ids(d) == ["input.rank_set"]
    assert "rank 2 of 4 is missing" in finding(d, "input.rank_set").claim


def test_two_different_dumps_of_one_rank_are_used_by_no_rule():
    files = dumps({r: ring(16) for r in range(4)})
    files["again_rank_1"] = dump(ring(9, state="started"), WORLD)
    d = said(files)
    assert ids(d) == ["input.rank_set"]
    assert "rank 1 is there twice" in finding(d, "input.rank_set").claim
    files["again_rank_1"] = files["trace_rank_1"]
    assert said(files).verdict == "none"


def test_two_folders_are_two_sets():
    good = {f"before/trace_rank_{r}": dump(ring(16), WORLD) for r in range(4)}
    bad = {f"after/trace_rank_{r}": dump(ring(16 if r else 15, state="started" if r else "completed"), WORLD) for r in range(4)}
    assert finding(said(good | bad), "comm.missing_rank").subject.rank == 0


def test_ranks_stuck_at_different_numbers_of_a_rooted_operation():
    d = said(dumps({r: ring(30, state="started", op="broadcast") for r in (0, 1, 2)} | {3: ring(29, state="started", op="broadcast")}))
    assert finding(d, "comm.desync").subject.rank == 3


def test_one_number_two_operations():
    d = said(dumps({r: ring(16, state="started") for r in (0, 1, 2)} | {3: [*ring(15), entry(16, op="all_gather", state="started")]}))
    f = finding(d, "comm.desync")
    assert f.subject.rank == 3
    assert "all_gather" in f.claim


def test_a_skipped_branch_is_ahead_in_one_group_and_behind_in_another():
    tp, dp = ("4", "tp"), ("9", "dp")
    groups = {r: {"4": ("tp", [4, 5, 6, 7]), str(7 + r % 4): ("dp", [r - 4, r])} for r in (4, 5, 6, 7)}
    files = {}
    for r in (4, 5, 6, 7):
        own = (str(7 + r % 4), "dp")
        ahead = 5 if r == 6 else 0
        mine = [entry(s, group=tp) for s in range(95, 100 + ahead)]
        mine.append(entry(100 + ahead, group=tp, state="started", op="all_gather" if ahead else "all_reduce"))
        mine += [entry(s, group=own) for s in range(40, 50 - ahead)] + [entry(50 - ahead, group=own, state="started")]
        files[f"trace_rank_{r}"] = dump(mine, groups[r])
    files["trace_rank_2"] = dump([*[entry(s, group=dp) for s in range(40, 50)], entry(50, group=dp, state="started")], {"9": ("dp", [2, 6])})
    d = said(files)
    f = finding(d, "comm.desync")
    assert f.subject.rank == 6
    assert "5 ahead in group 4 (tp)" in f.claim
    assert "5 behind in group 9 (dp)" in f.claim
    assert any("delta_tp=5" in e.text and "delta_dp=-5" in e.text for e in f.evidence)
    assert "comm.missing_rank" not in ids(d)


def test_a_rank_that_waits_in_another_group_is_a_victim():
    groups = {"0": WORLD["0"], "1": ("tp", [2, 3])}
    files = {f"trace_rank_{r}": dump(ring(9, state="started"), WORLD) for r in (0, 1)}
    files["trace_rank_2"] = dump([*ring(8), entry(4, group=("1", "tp"), state="started")], groups)
    files["trace_rank_3"] = dump([*ring(8), entry(3, group=("1", "tp"))], groups)
    assert finding(said(files), "comm.missing_rank").subject.rank == 3


def gloo(last, *, completed, enqueued=None):
    entries = [e | {"profiling_name": "gloo:all_to_all", "time_discovered_completed_ns": None} for e in ring(last, state="scheduled")]
    for e in entries:
        e["state"] = "scheduled"
    top = dump(entries, WORLD)
    top["pg_status"] = {"0": {"last_enqueued_collective": enqueued or last, "last_started_collective": -1, "last_completed_collective": completed}}
    return top


def test_gloo_says_nothing_of_completion():
    assert said({f"d_rank_{r}": gloo(18, completed=18) for r in range(4)}).verdict == "none"
    hung = {f"d_rank_{r}": gloo(16, completed=16 - 2 * (r == 0)) for r in range(3)} | {"d_rank_3": gloo(15, completed=15)}
    assert finding(said(hung), "comm.missing_rank").subject.rank == 3


@pytest.mark.parametrize(("sizes", "odd"), [
    ({3: ((4, 9), (4, 9))}, 3),
    ({0: ((4, 9), (4, 9))}, 0),
])  # fmt: skip
def test_the_minority_is_odd(sizes, odd):
    d = said(dumps({r: ring(5, sizes=sizes.get(r, ((4, 8), (4, 8)))) for r in range(4)}))
    f = finding(d, "comm.size_mismatch")
    assert (f.subject.rank, f.value, f.limit) == (odd, 36, 32)


def test_a_tie_names_both():
    d = said(dumps({r: ring(5, sizes=((4, 8 + r % 2), (4, 8 + r % 2))) for r in range(4)}))
    assert "neither is the odd one" in finding(d, "comm.size_mismatch").claim


def test_another_shape_of_the_same_number_of_elements_is_no_mismatch():
    d = said(dumps({r: ring(5, sizes=((4, 8), (4, 8)) if r else ((32,), (32,))) for r in range(4)}))
    assert d.verdict == "none"


def test_the_list_form_of_all_gather_may_have_uneven_inputs():
    def gathered(r):
        e = entry(1, op="all_gather") | {"input_sizes": [[2 + r]], "output_sizes": [[2], [3], [4], [5]]}
        return [e]

    assert said(dumps({r: gathered(r) for r in range(4)})).verdict == "none"


def alltoall(ins, outs, **more):
    return {r: [entry(1, op="all_to_all", sizes=((i,), (o,)), **more)] for r, (i, o) in enumerate(zip(ins, outs, strict=True))}


def pair(ins, outs, **more):
    return dumps(alltoall(ins, outs, **more), {"0": ("default_pg", list(range(len(ins))))})


def test_totals_that_differ_are_a_mismatch_without_a_pair():
    f = finding(said(pair((8, 4), (6, 5))), "a2a.count_mismatch")
    assert (f.value, f.limit) == (11, 12)
    assert "pair cannot be named" in f.claim


def test_uneven_totals_that_agree_are_legal():
    d = said(pair((8, 4), (6, 6)))
    assert [(f.id, f.severity) for f in d.findings] == [("a2a.uneven_is_legal", "info")]


def test_beside_other_artefacts_legal_is_only_ruled_out():
    d = said(pair((8, 4), (6, 6)) | {"s.log": "INFO 03-11 11:00:00 [a.py:1] rank 0 in world size 2 is assigned as DP rank 0\n" * 2,
                                     "m.prom": "# TYPE x counter\nx 1\n"})  # fmt: skip
    assert "a2a.count_mismatch" not in ids(d)


def test_an_absent_rank_leaves_the_totals_open():
    files = pair((8, 4, 3), (6, 5, 4))
    del files["trace_rank_2"]
    assert "a2a.count_mismatch" not in ids(said(files))


def test_splits_name_the_pair():
    e = alltoall((4, 6), (5, 5))
    e[0][0] |= {"input_split_sizes": [1, 3], "output_split_sizes": [1, 4]}
    e[1][0] |= {"input_split_sizes": [4, 2], "output_split_sizes": [2, 3]}
    f = finding(said(dumps(e, {"0": ("ep", [0, 1])})), "a2a.count_mismatch")
    assert "rank 0 sends 3 rows to rank 1, which expects 2" in f.claim


def slow(wait_s, timeout_ms=600_000, late=400.0):
    entries = {}
    for r in range(4):
        at = T0 + (int(late * 1e9) if r == 2 else 0)
        took = wait_s - (late if r == 2 else 0)
        entries[r] = [entry(1), entry(14, at=at, took_s=took, timeout_ms=timeout_ms)]
    return dumps(entries)


def test_a_wait_near_the_limit_names_the_late_rank():
    d = said(slow(402.4, late=402.0))
    f = finding(d, "comm.timeout_near")
    assert (d.verdict, f.severity, f.subject.rank) == ("comm.timeout_near", "warn", 2)
    assert f.value == pytest.approx(402.4)
    assert f.limit == 300
    assert any("wait_s=402.4 limit_s=600" in e.text for e in f.evidence)
    assert "67%" in f.claim


@pytest.mark.parametrize(("wait", "timeout"), [(280, 600_000), (601, 600_000), (400, 0)])
def test_below_half_beyond_the_limit_or_without_one_is_no_near_timeout(wait, timeout):
    assert "comm.timeout_near" not in ids(said(slow(wait, timeout, late=min(wait, 100))))


def test_json_and_pickle_say_the_same():
    files = dumps({r: ring(16, state="started") for r in (0, 1, 2)} | {3: ring(15)})
    as_json = {f"{n}.json": json.dumps(d) for n, d in files.items()}
    assert ids(said(as_json)) == ids(said(files))


def test_one_unnamed_dump_is_the_rank_that_is_left():
    files = dumps({r: ring(16, state="started") for r in (0, 1, 2)})
    files["dump"] = dump(ring(15), WORLD)
    assert finding(said(files), "comm.missing_rank").subject.rank == 3


def test_who_was_late_is_shown():
    rows = said(slow(402.4, late=402.0)).exhibits["waits"]
    late = {r["rank"]: (round(r["late_s"]), round(r["waited_s"])) for r in rows}
    assert late == {0: (0, 402), 1: (0, 402), 2: (402, 0), 3: (0, 402)}


def test_the_setting_in_force_where_entries_have_no_limit():
    bare = slow(402.4, timeout_ms=0, late=402.0)
    assert "comm.timeout_near" not in ids(said(bare))
    launch = "python -m sglang.launch_server --model-path M --tp 4 --dist-timeout 500\n"
    f = finding(said(bare | {"launch.txt": launch}), "comm.timeout_near")
    assert "set by dist_timeout" in f.claim
    assert f.limit == 250
    f = finding(said(bare | {"launch.txt": launch.replace(" --dist-timeout 500", "")}), "comm.timeout_near")
    assert "default" in f.claim
    assert f.limit == 300


def test_dumps_of_a_live_job_taken_one_after_another_are_silent():
    """Rank 2's open number is complete on a rank that was dumped later: nobody waits."""
    made = {
        f"nccl_trace_rank_{r}": dump([*[entry(s) for s in range(1, 40 + r)], entry(40 + r, state="started" if r == 2 else "completed")])
        for r in range(4)
    }  # fmt: skip
    assert ids(said(made)) == []
