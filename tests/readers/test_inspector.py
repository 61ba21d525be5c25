"""NCCL Inspector dumps and RAS reports as JSON: what they become and what the rules say of them."""

import gzip
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources

T0_US = 1_795_860_000_000_000
WORLD = "0x7f8c496ae9f661"


def record(rank, seq, us, *, ranks=4, comm=WORLD, op="AllReduce", size=1 << 20, start=None, kind="coll", version="v4.0", source="kernel_gpu", **more):
    perf = {
        kind: op, f"{kind}_sn": seq, f"{kind}_msg_size_bytes": size, f"{kind}_exec_time_us": us, f"{kind}_timing_source": source,
        f"{kind}_algobw_gbs": 100.0, f"{kind}_busbw_gbs": 187.5, **more,
    }  # fmt: skip
    if start is not None:
        events = [{"channel_id": c, "kernel_start_ts": start + c, "kernel_stop_ts": start + us} for c in range(2)]
        perf["event_trace_ts"] = {"coll_start_ts": start - 9, "coll_stop_ts": start - 3, "kernel_events": events}
    return {
        "header": {"id": comm, "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {"inspector_output_format_version": version, "git_rev": "", "rec_mechanism": "profiler_plugin",
                     "dump_timestamp_us": T0_US + 20_000 * seq + 500, "hostname": "node-0", "pid": 100 + rank},
        f"{kind}_perf": perf,
    }  # fmt: skip


def read(files):
    return read_sources([Source(name, content=text if isinstance(text, bytes) else text.encode()) for name, text in files.items()])


def lines(records):
    return "\n".join(map(json.dumps, records)) + "\n"


def job(late=None, *, wait=4000, transfer=50, ranks=4, count=40, verbose=True, comm=WORLD, **more):
    """One collective each 20 ms; the others wait `wait` us for the late rank in their kernels."""
    noise = random.Random(3)
    out = {}
    for rank in range(ranks):
        rows = []
        for seq in range(count):
            took = transfer + noise.randrange(5) + (wait if late is not None and rank != late else 0)
            start = T0_US + 20_000 * seq + (wait if rank == late else 0)
            rows.append(record(rank, seq, took, ranks=ranks, comm=comm, start=start if verbose else None, **more))
        out[f"node-0-pid{100 + rank}.log"] = lines(rows)
    return out


@pytest.mark.parametrize("form", ["lines", "gzip", "pretty", "list"])
def test_every_way_to_write_them(form):
    records = [record(2, 7, 61974, start=T0_US), record(2, 8, 100, kind="p2p", op="Send", p2p_peer=3)]
    text = {"lines": lines(records), "gzip": gzip.compress(lines(records).encode()), "list": json.dumps(records),
            "pretty": "\n".join(json.dumps(r, indent=2) for r in records)}[form]  # fmt: skip
    run = read({"inspector.log": text})
    [b] = run.batches("comm_perf")
    assert b.columns["rank"].tolist() == [2, 2]
    assert b.columns["exec_s"].tolist() == [0.061974, 0.0001]
    assert [b.attrs["ops"][i] for i in b.columns["op"]] == ["AllReduce", "Send"]
    assert b.columns["peer"].tolist() == [-1, 3]
    assert b.columns["start_ns"].tolist() == [T0_US * 1000, -1]
    assert [i.reader for i in run.inputs] == ["nccl inspector"]


def test_the_events_of_format_five():
    perf = record(0, 1, 10, version="v5.0")
    perf["coll_perf"]["events"] = [{"event_type": "KernelCh", "channel_id": 0, "event_trace_ts": {"kernel_start_ts": T0_US + 4, "kernel_stop_ts": T0_US + 14}}]
    [b] = read({"a.log": lines([perf])}).batches("comm_perf")
    assert b.columns["start_ns"].tolist() == [(T0_US + 4) * 1000]


@pytest.mark.parametrize("verbose", [True, False])
def test_a_late_rank_is_named(verbose):
    [finding] = diagnose(read(job(late=2, verbose=verbose))).findings
    assert (finding.id, finding.severity, finding.subject.rank) == ("comm.straggler_wait", "warn", 2)
    assert finding.value == pytest.approx(0.004, rel=0.02)
    assert "rank 2 arrives last in 40 of 40 collectives" in finding.claim


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize("verbose", [True, False])
def test_a_peer_that_waited_in_its_own_communicator_is_a_victim(late, verbose):
    rows = {r: [] for r in range(4)}
    for seq in range(30):
        at = [T0_US + 40_000 * seq + (4_000 if r == late else 0) for r in range(4)]
        for comm, members in (("0xaa", (0, 1)), ("0xbb", (2, 3)), (WORLD, (3, 2, 1, 0))):
            end = max(at[r] for r in members) + 60
            for r in members:
                own, ranks = (r, 4) if comm == WORLD else (members.index(r), 2)
                rows[r].append(record(own, seq, end - at[r], ranks=ranks, comm=comm, start=at[r] if verbose else None))
                at[r] = end + (2_000 if comm != WORLD else 0)
    said = diagnose(read({f"node-0-pid{100 + r}.log": lines(x) for r, x in rows.items()}))
    named = [f.subject.rank for f in said.findings if f.id == "comm.straggler_wait" and not f.cannot_tell]
    assert named == [late]


def test_a_rank_that_waited_elsewhere_at_another_time_keeps_the_blame():
    """Before the job, rank 3 waits for 2 in their pair; later 3 is late by itself, and 2 waits for it like the others."""
    rows = {r: [] for r in range(4)}
    for seq in range(40):
        begun = T0_US - 40_000 * (60 - seq)
        for rank, at in ((0, begun + 6_000), (1, begun)):
            rows[rank + 2].append(record(rank, seq, begun + 6_060 - at, ranks=2, comm="0xbb", start=at))
    for seq in range(60):
        begun = T0_US + 40_000 * seq
        for rank in range(4):
            at = begun + (4_000 if rank == 3 else 0)
            rows[rank].append(record(rank, seq, begun + 4_060 - at, start=at))
    said = diagnose(read({f"node-0-pid{100 + r}.log": lines(x) for r, x in rows.items()}))
    found = [f for f in said.findings if f.id == "comm.straggler_wait" and "of 4 ranks" in f.claim]
    assert [f.subject.rank for f in found] == [3]


def test_near_misses_are_silent():
    assert not diagnose(read(job())).findings  # nobody is late
    assert not diagnose(read(job(late=2, wait=600))).findings  # 3 % of the distance
    alone = job(late=2)
    assert not diagnose(read({"a.log": alone["node-0-pid100.log"]})).findings  # one rank cannot tell
    assert not diagnose(read(job(late=2, source="collective_cpu"))).findings  # times of the call, not of the kernel


def test_without_any_time_the_share_cannot_be_told():
    files = {}
    for name, text in job(late=1, verbose=False).items():
        rows = [json.loads(x) for x in text.splitlines()]
        for row in rows:
            del row["metadata"]["dump_timestamp_us"]
        files[name] = lines(rows)
    [finding] = diagnose(read(files)).findings
    assert (finding.id, finding.severity) == ("comm.straggler_wait", "info")
    assert finding.confidence < 0.5
    assert finding.settle_with


def test_a_slow_transfer_of_one_communicator():
    files = job(transfer=100, comm="0xa", size=1 << 24)
    files |= {f"b-{name}": text for name, text in job(transfer=400, comm="0xb", size=1 << 24).items()}
    [finding] = diagnose(read(files)).findings
    assert finding.id == "comm.slow_transfer"
    assert "communicator 0xb" in finding.claim
    assert finding.value == pytest.approx(400e-6, rel=0.03)


def test_near_miss_a_larger_message_may_take_longer():
    files = job(transfer=100, comm="0xa", size=1 << 20)
    files |= {f"b-{name}": text for name, text in job(transfer=400, comm="0xb", size=1 << 22).items()}
    assert not diagnose(read(files)).findings


def test_a_file_given_twice_changes_nothing():
    files = job(late=2)
    once = diagnose(read(files)).findings
    twice = diagnose(read({**files, "copy.log": files["node-0-pid101.log"]})).findings
    assert [f.claim for f in twice] == [f.claim for f in once]


def test_damage_is_counted():
    rows = [record(0, i, 10) for i in range(5)]
    rows[1]["header"] = None
    rows[2]["coll_perf"]["coll_exec_time_us"] = -4
    rows[3]["header"]["rank"] = "x"
    text = json.dumps(record(0, 9, 10)) + "\n" + lines(rows) + '{"header": {"id"'
    run = read({"a.log": text})
    assert sum(i.rows for i in run.inputs) == 3
    assert {p.id: p.lost for _, p in run.problems} == {"input.truncated": 1, "input.dirty_table": 3}


odd = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=3) | st.just([]) | st.just({"kernel_events": [3]})


@given(st.dictionaries(st.sampled_from(["header", "metadata"]), odd), st.dictionaries(st.sampled_from(["coll", "coll_sn", "coll_msg_size_bytes", "coll_exec_time_us", "event_trace_ts", "events"]), odd))
def test_odd_values_never_fail(top, inner):
    bad = record(0, 3, 10) | top
    bad["coll_perf"] = bad["coll_perf"] | inner
    diagnose(read({"a.log": lines([record(0, 1, 10), bad]), "b.log": lines([record(1, 1, 30), record(1, 3, 10)])}))


# ---- RAS as JSON


def status(counts, *, missing=(), op="AllGather"):
    ranks = [
        {"rank": r, "host": "192.0.2.1", "pid": 100 + r, "cuda_dev": r, "nvml_dev": r,
         "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False},
         "collective_counts": {"Broadcast": 0, op: n}}
        for r, n in counts.items()
    ]  # fmt: skip
    gone = [{"rank": r, "host": "192.0.2.2", "pid": 1, "status": {"unresponsive": True, "considered_dead": False}} for r in missing]
    comm = {"hash": "0xae94423cfbb2ef4a", "secondary_hash": "0xb7:0xb8", "size": len(counts) + len(missing), "ranks_count": len(counts),
            "missing_ranks_count": len(missing), "ranks": ranks, "missing_ranks": gone}  # fmt: skip
    return {"nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000, "timestamp": "2026-11-19 13:06:53",
            "communicators_count": 1, "communicators": [comm]}  # fmt: skip


def judged(*reports):
    return diagnose(read({"ras.json": "\n".join(json.dumps(r, indent=1) for r in reports)}))


def test_laggards_by_rank():
    [finding] = judged(status({0: 641, 1: 641, 2: 640, 3: 641})).findings
    assert (finding.id, finding.subject.rank) == ("comm.lagging_ranks", 2)


def test_two_polls_prove_that_nothing_moves_or_that_all_does():
    same = status({0: 641, 1: 641, 2: 640, 3: 641})
    [finding] = judged(same, same).findings
    assert finding.confidence > 0.9
    moved = judged(same, status({0: 655, 1: 655, 2: 655, 3: 655}))
    assert not moved.findings


def test_ranks_without_data_are_missing():
    [finding] = judged(status({0: 5, 1: 5}, missing=[3])).findings
    assert (finding.id, finding.subject.rank, finding.limit) == ("comm.missing_rank", 3, 3.0)


def test_a_healthy_report_is_read_and_silent():
    answer = judged(status(dict.fromkeys(range(8), 77)))
    assert not answer.findings
    assert answer.run.inputs[0].rows


def test_the_missing_comma_of_one_release_is_mended():
    """NCCL 2.28.9 forgets the comma before a member's status."""
    text = json.dumps(status({0: 5, 1: 5}, missing=[2]), indent=1).replace('"pid": 1,\n', '"pid": 1\n')
    found = diagnose(read({"ras.json": text}))
    assert "comm.missing_rank" in [f.id for f in found.findings]


@given(st.dictionaries(st.sampled_from(["hash", "size", "ranks", "missing_ranks"]), odd | st.lists(odd, max_size=3)))
def test_odd_reports_never_fail(inner):
    bad = status({0: 5, 1: 6})
    bad["communicators"][0] |= inner
    judged(bad)
