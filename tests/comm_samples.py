"""Samples about collectives: watchdog lines of every torch version, recorder dumps, and how to diagnose them."""

import pickle

from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources

STAMP = "E311 07:12:30.114002331 ProcessGroupNCCL.cpp:632"
T0 = 1_790_000_000_000_000_000


def watchdog(rank, seq, *, group_rank=None, op="ALLREDUCE", numel=(64, 64), group="3", guid="21", desc="", enqueued=None):
    """The two lines that a rank of torch >= 2.5 prints."""
    local = rank if group_rank is None else group_rank
    named = f"({desc})" if desc else ""
    last = seq if enqueued is None else enqueued
    return (
        f"[rank{rank}]:[{STAMP}] [Rank {local}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
        f"OpType={op}, NumelIn={numel[0]}, NumelOut={numel[1]}, Timeout(ms)=600000) ran for 600007 milliseconds before timing out.\n"
        f"[rank{rank}]:[{STAMP}] [PG ID {group} PG GUID {guid}{named} Rank {local}]  failure detected by watchdog at work "
        f"sequence id: {seq} PG status: last enqueued work: {last}, last completed work: {seq - 1}\n"
    )


def entry(seq, *, op="all_reduce", state="completed", sizes=((4, 8), (4, 8)), group=("0", "default_pg"), at=None, took_s=0.001, **more):
    """One recorder entry as torch >= 2.4 writes it."""
    created = T0 + seq * 1_000_000_000 if at is None else at
    done = state == "completed"
    return {
        "record_id": seq, "pg_id": int(group[0]), "process_group": group, "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq,
        "profiling_name": f"nccl:{op}", "time_created_ns": created,
        "time_discovered_started_ns": created + 1000 if state != "scheduled" else None,
        "time_discovered_completed_ns": created + int(took_s * 1e9) if done else None,
        "input_sizes": [list(sizes[0])], "output_sizes": [list(sizes[1])], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "state": state, "retired": done, "timeout_ms": 600_000, "is_p2p": False, "frames": [], **more,
    }


def dump(entries, groups=None, *, status=True, version="2.10"):
    """A recorder dump; groups: {name: (desc, members)}."""
    groups = groups or {"0": ("default_pg", [0, 1, 2, 3])}
    out = {
        "version": version, "comm_lib_version": "2.27.5", "entries": entries,
        "pg_config": {n: {"name": n, "desc": d, "ranks": str(m)} for n, (d, m) in groups.items()},
    }
    if status:
        out["pg_status"] = {}
        for name in groups:
            mine = [e for e in entries if e["process_group"][0] == name]
            if mine:
                done = [e["collective_seq_id"] for e in mine if e["state"] == "completed"]
                last = max(e["collective_seq_id"] for e in mine)
                out["pg_status"][name] = {"last_enqueued_collective": last, "last_started_collective": last,
                                          "last_completed_collective": max(done, default=-1)}
    return out


def files(contents):
    """Sources of {name: text, bytes, or an object to pickle}."""
    out = []
    for name, content in contents.items():
        data = content if isinstance(content, bytes) else content.encode() if isinstance(content, str) else pickle.dumps(content, 2)
        out.append(Source(name, content=data))
    return out


def read(contents):
    return read_sources(files(contents))


def said(contents):
    """The diagnosis of {name: content}."""
    return diagnose(read(contents))


def ids(diagnosis, *, strong=False):
    return [f.id for f in diagnosis.findings if not strong or f.severity != "info"]


def finding(diagnosis, id):
    return next(f for f in diagnosis.findings if f.id == id)
