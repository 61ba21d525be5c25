"""Launch times of recorder dumps: who was late, and what its log says of it."""

import time

from comm_samples import T0, dump, entry, finding, ids, said

PACE = 2_000_000  # ns between two collectives
LATE = 150_000_000


def dumps(late=(), *, by=1, ranks=(0, 1), clock=40_000_000, length=LATE, first=1, last=60):
    """Dumps of ranks that launch together, but for rank `by` in some numbers; its clock is ahead."""
    out, now = {r: [] for r in ranks}, T0
    for seq in range(first, last):
        now += PACE
        pause = length if seq in late else 0
        for r in ranks:
            at = now + (pause + clock if r == by else 0)
            out[r].append(entry(seq, op="all_to_all", at=at, took_s=(pause + 5e5) / 1e9 if r != by else 5e-4))
        now += pause
    world = {"0": ("default_pg", list(ranks))}
    return {f"trace_rank_{r}": dump(e, world) for r, e in out.items()}


def at(seq, late, clock=40_000_000):
    """When rank 1 launched a number, s."""
    return (T0 + seq * PACE + LATE * sum(s <= seq for s in late) + clock) / 1e9


def line(seconds, text, rank=1):
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}"
    return f"[{stamp} DP{rank} TP{rank} EP{rank}] {text}\n"


def log(times, rank=1, took=0.148):
    text = f"WARNING LONG GARBAGE COLLECTION DETECTED | Generation 2 | Duration: {took:.4f}s | # Objects: 9"
    ready = line(T0 / 1e9 - 9, "Application startup complete.", 0)
    return {"server.log": ready + "".join(line(t, text, rank) for t in times)}


def test_late_launches_name_their_rank_and_the_collector():
    late = (20, 33, 47)
    d = said(dumps(late) | log([at(s, late) for s in late]))
    assert ids(d, strong=True) == ["host.gc_pause", "comm.straggler_wait"]
    wait = finding(d, "comm.straggler_wait")
    assert (wait.subject.rank, wait.implied_by) == (1, ("host.gc_pause",))
    assert "rank 1 launches 3 collectives up to 150 ms after the others (450 ms in sum" in wait.claim
    assert finding(d, "host.gc_pause").confidence <= 0.7


def test_without_a_line_of_that_rank_and_time_only_the_lateness_is_said():
    late = (20, 33, 47)
    elsewhere = (
        {}, log([at(s, late) for s in late], rank=0), log([at(s, late) for s in late], took=0.02),
        log([at(s, late) + 0.7 for s in late][-1:]),
    )  # fmt: skip
    for more in elsewhere:
        assert ids(said(dumps(late) | more), strong=True) == ["comm.straggler_wait"]


def test_a_clock_that_is_ahead_is_no_lateness():
    assert said(dumps(clock=3_000_000_000)).verdict == "none"
    assert said(dumps((20,), length=5_000_000)).verdict == "none"  # below five distances


def test_few_collectives_or_one_dump_tell_nothing():
    assert said(dumps((5,), last=8)).verdict == "none"
    assert said({k: v for k, v in dumps((20, 33)).items() if k.endswith("_1")}).verdict == "none"


def test_ranks_whose_numbers_do_not_match_are_not_compared():
    stuck = dumps((20, 33), ranks=(0, 1, 2))
    for rank in (0, 1):
        stuck[f"trace_rank_{rank}"]["entries"][-1] |= {"state": "started", "time_discovered_completed_ns": None}
        stuck[f"trace_rank_{rank}"]["pg_status"]["0"]["last_completed_collective"] = 58
    stuck["trace_rank_2"] = dump(stuck["trace_rank_2"]["entries"][:-1], {"0": ("default_pg", [0, 1, 2])})
    assert ids(said(stuck), strong=True) == ["comm.missing_rank"]


def test_a_peer_that_waited_in_its_own_group_is_a_victim():
    groups = {"0": ("world", [0, 1, 2, 3]), "1": ("tp", [0, 1]), "2": ("tp", [2, 3])}
    out, now = {r: [] for r in range(4)}, T0
    for seq in range(1, 60):
        now += PACE
        pause = LATE if seq in (20, 33, 47) else 0
        for name, members in (("1", (0, 1)), ("2", (2, 3))):
            for r in members:
                at = now + (pause if r == 3 else 0)
                out[r].append(entry(seq, op="all_reduce", at=at, group=(name, "tp")))
        for r in range(4):  # hosts wait for the end of their own group; rank 2 launches a little after rank 3
            at = now + 400_000 + (pause if r in (2, 3) else 0) + (9_000 if r == 2 else 0)
            out[r].append(entry(seq, op="all_to_all", at=at, group=("0", "world")))
        now += pause
    d = said({f"trace_rank_{r}": dump(e, groups) for r, e in out.items()})
    waits = [f.subject.rank for f in d.findings if f.id == "comm.straggler_wait"]
    assert waits == [3]
