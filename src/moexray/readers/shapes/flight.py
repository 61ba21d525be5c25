"""Flight-recorder dumps of torch.distributed: pickle and JSON, from the bare list of v1 to schema 2.11.

Glossary: *ring*: the recorder keeps the last N entries, so dumps of ranks start at different
numbers; *retired* says nothing of completion; a JSON dump has 0 where a time is missing and texts
where a pickle has numbers; gloo never reports starts or ends, its entries stay "scheduled".
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.core.rank_name import rank_in_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["read"]

MARKS = ("profiling_name", "collective_seq_id", "seq_id")
P2P = lazy(r"^(?:send|recv|isend|irecv|coalesced)\b|\d+ ?(?:->|<-) ?\d+")
COLUMNS = (
    "group", "seq", "op", "state", "p2p", "sizes_in", "sizes_out", "numel_in", "numel_out", "dtype",
    "splits_in", "splits_out", "created_ns", "started_ns", "completed_ns", "timeout_s",
)  # fmt: skip
FLOATS = frozenset({"numel_in", "numel_out", "created_ns", "started_ns", "completed_ns", "timeout_s"})
SPLITS = {
    way: (f"{full}_split_sizes", f"{way}_split_sizes", f"{full}_splits", f"{way}_splits", f"{way}_split_size")
    for way, full in (("in", "input"), ("out", "output"))
}
SHAPE_TEXT = 200  # characters of a shape kept


def read(document: Any, source: Source, out: Reading) -> bool:
    """Takes a dump into comm_flight and comm_group; False if the document is none."""
    entries = _entries(document)
    if entries is None:
        return False
    top: dict[str, Any] = document if isinstance(document, dict) else {}
    names = _names(entries)
    rows = _columns(entries, names, out)
    groups = _groups(top, names, rows["group"])
    used = set(rows["group"]) | {n for n, g in groups.items() if g["status"]["enqueued"]}
    rank, origin = _rank(top, used, groups, source)
    library = _library(entries)
    for group in groups.values():
        status = group.pop("status")
        out.add("comm_group", where=f"group {group['group']}", origin="dump", rank=rank, **group, **status)
    out.rows -= len(groups)  # records of a dump are its entries
    out.add_columns(
        "comm_flight",
        rows,
        source=source.path,
        rows=len(rows["seq"]),
        rank=rank,
        rank_from=origin,
        version=str(top.get("version", "1")),
        library=library,
        host=top.get("host_name"),
        timing=library != "gloo",
        folder=source.path.rpartition("/")[0],
    )
    out.notes.append(
        f"flight recorder of rank {'unknown' if rank is None else rank}, {len(rows['seq'])} entries"
    )
    if not rows["seq"].size:
        out.rows = max(out.rows, len(groups))
    return True


def _entries(document: Any) -> list[dict[str, Any]] | None:
    found = document.get("entries") if isinstance(document, dict) else document
    if isinstance(document, dict) and found is None and isinstance(document.get("pg_status"), dict):
        return []
    if not isinstance(found, list | tuple):
        return None
    good = [e for e in found if isinstance(e, dict) and any(mark in e for mark in MARKS)]
    if good:
        return good
    recorder = isinstance(document, dict) and ("pg_config" in document or "pg_status" in document)
    return [] if recorder and not found else None


def _names(entries: list[dict[str, Any]]) -> dict[str, tuple[str, str | None]]:
    """Id of a group on this rank -> (its global name, description).

    The name comes from the entries, for gloo's pg_config has "" where they say "0".
    """
    names: dict[str, tuple[str, str | None]] = {}
    for e in entries:
        pair = e.get("process_group")
        if isinstance(pair, list | tuple) and pair:
            names[str(e.get("pg_id", pair[0]))] = (
                str(pair[0]),
                str(pair[1]) if len(pair) > 1 and pair[1] else None,
            )
        elif e.get("pg_id") is not None:
            names.setdefault(str(e["pg_id"]), (str(e.get("pg_name", e["pg_id"])), None))
    return names


def _groups(
    top: dict[str, Any], names: dict[str, tuple[str, str | None]], used: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Members and progress by the group's global name."""
    groups: dict[str, dict[str, Any]] = {}

    def of(name: str, desc: str | None = None) -> dict[str, Any]:
        fresh = {
            "group": name,
            "group_id": None,
            "desc": desc,
            "members": None,
            "size": None,
            "status": {"enqueued": None, "completed": None},
        }
        group = groups.setdefault(name, fresh)
        group["desc"] = group["desc"] or desc
        return group

    for id_, (name, desc) in names.items():
        of(name, desc)["group_id"] = id_
    for name in used:
        of(name)
    config = top.get("pg_config")
    config = config if isinstance(config, dict) else {}
    for key, value in config.items():
        if not isinstance(value, dict):
            continue
        name = str(value.get("name") or key)
        if not name:  # gloo leaves it empty; the only group of the entries is meant
            name = next(iter(groups), "0") if len(groups) <= 1 or len(config) == 1 else "0"
        group = of(name, str(value["desc"]) if value.get("desc") else None)
        members = _ranks(value.get("ranks"))
        if members:
            group["members"], group["size"] = members, len(members)
    status = top.get("pg_status")
    for key, value in status.items() if isinstance(status, dict) else ():
        if isinstance(value, dict):
            name = names[str(key)][0] if str(key) in names else str(key)
            if name in groups or _number(value.get("last_enqueued_collective")) is not None:
                of(name)["status"] = {
                    "enqueued": _number(value.get("last_enqueued_collective")),
                    "completed": _number(value.get("last_completed_collective")),
                }
    return groups


def _ranks(value: Any) -> list[int] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = re.findall(r"\d+", value)
    if not isinstance(value, list | tuple):
        return None
    ranks = {int(r) for r in value if str(r).isdigit()}
    return sorted(ranks) or None


def _rank(
    top: dict[str, Any], used: set[str], groups: dict[str, dict[str, Any]], source: Source
) -> tuple[int | None, str | None]:
    """The rank that wrote the dump: said in it, the only member of all its groups, else the name's."""
    for key in ("rank", "global_rank"):
        if str(top.get(key, "")).isdigit():
            return int(top[key]), "content"
    members = [set(g["members"]) for name, g in groups.items() if g["members"] and name in used]
    common = set.intersection(*members) if members else set()
    if len(common) == 1 and len(members) > 1:
        return common.pop(), "content"
    named = rank_in_name(source.path, bare=True)
    if named is not None and (not common or named in common):
        return named, "name"
    return None, None


def _library(entries: list[dict[str, Any]]) -> str | None:
    """gloo, nccl, xccl, ...: the most frequent prefix of the operations."""
    names = [str(e.get("profiling_name", "")).partition(":") for e in entries[:64]]
    libraries = [library for library, colon, _ in names if colon]
    return max(set(libraries), key=libraries.count) if libraries else None


def _columns(
    entries: list[dict[str, Any]], names: dict[str, tuple[str, str | None]], out: Reading
) -> dict[str, Any]:
    import numpy as np

    known: dict[str, tuple[str, float]] = {}
    rows = [row for e in entries if (row := _row(e, names, known)) is not None]
    if bad := len(entries) - len(rows):
        text = f"{bad} recorder entries without a number; they were left out"
        out.problem("input.dirty_table", text, lost=bad)
    lists = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    arrays: dict[str, Any] = {}
    for name, values in zip(COLUMNS, lists, strict=True):
        if name == "seq":
            arrays[name] = np.array(values, dtype=np.int64)
        elif name in FLOATS:
            arrays[name] = np.array(values, dtype=np.float64)
        else:
            arrays[name] = list(values)
    return arrays


def _row(
    e: dict[str, Any], names: dict[str, tuple[str, str | None]], known: dict[str, tuple[str, float]]
) -> tuple[Any, ...] | None:
    """The values of COLUMNS; None for an entry without a number. `known` holds the shapes met so far."""
    seq = _number(e.get("collective_seq_id", e.get("seq_id")))
    if seq is None:
        return None
    op = sys.intern(str(e.get("profiling_name", "")).rpartition(":")[2])
    pair = e.get("process_group")
    id_ = str(e.get("pg_id", ""))
    name = str(pair[0]) if isinstance(pair, list | tuple) and pair else names.get(id_, (id_, None))[0]
    shape_in, numel_in = _sizes(e.get("input_sizes"), known)
    shape_out, numel_out = _sizes(e.get("output_sizes"), known)
    return (
        sys.intern(name),
        seq,
        op,
        sys.intern(str(e.get("state", ""))),
        bool(e.get("is_p2p")) or P2P.search(op) is not None,
        shape_in,
        shape_out,
        numel_in,
        numel_out,
        sys.intern(_first(e.get("input_dtypes"))),
        _splits(e, "in"),
        _splits(e, "out"),
        _positive(e.get("time_created_ns")),
        _positive(e.get("time_discovered_started_ns")),
        _positive(e.get("time_discovered_completed_ns")),
        _positive(e.get("timeout_ms")) / 1e3,
    )


def _positive(value: Any) -> float:
    """NaN for what is missing; JSON dumps write 0 there."""
    return float(_number(value) or 0) or float("nan")


def _sizes(sizes: Any, known: dict[str, tuple[str, float]]) -> tuple[str, float]:
    """Shape and number of elements; the same few shapes come again and again."""
    key = str(sizes)
    found = known.get(key)
    if found is None:
        found = known[key] = (_shape(sizes), _numel(sizes))
    return found


def _shape(sizes: Any) -> str:
    """Shapes as a text that two ranks share."""
    if not isinstance(sizes, list | tuple):
        return ""
    return sys.intern(str([list(s) if isinstance(s, list | tuple) else s for s in sizes])[:SHAPE_TEXT])


def _numel(sizes: Any) -> float:
    if not isinstance(sizes, list | tuple):
        return float("nan")
    total = 0
    for shape in sizes:
        count = 1
        for n in shape if isinstance(shape, list | tuple) else (shape,):
            if not isinstance(n, int) or n < 0:
                return float("nan")
            count *= n
        total += count
    return float(total)


def _splits(entry: dict[str, Any], way: str) -> tuple[int, ...] | None:
    """Per-peer row counts; their key is not the same in all writers."""
    for key in SPLITS[way]:
        value = entry.get(key)
        if isinstance(value, list | tuple) and value and all(isinstance(v, int) for v in value):
            return tuple(value)
    return None


def _first(value: Any) -> str:
    return str(value[0]) if isinstance(value, list | tuple) and value else ""


def _number(value: Any) -> int | None:
    """A count or time; texts count, -1 is none yet."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number >= 0 else None
