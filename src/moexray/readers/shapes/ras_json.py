"""The status report of NCCL's RAS as JSON (`ncclras -f json`, NCCL 2.28.7 on) -> the table comm_ras.

The same rows as from the text report (readers/lines/comm_ras.py): one per count of operations and
communicator; here every rank is listed, also where all stand at the same count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["ras_json"]

MOST_RANKS = 1 << 20
QUOTED = 4  # ranks of a quoted row


def ras_json(document: Any, source: Source, out: Reading) -> bool:  # noqa: ARG001  # one signature for all
    """A report, or several polls one after the other."""
    reports = document if isinstance(document, list) else [document]
    found = [r for r in reports if isinstance(r, dict) and isinstance(r.get("communicators"), list)]
    found = [r for r in found if "nccl_version" in r or "communicators_count" in r]
    odd = 0
    for number, report in enumerate(found):
        text = f"NCCL {report.get('nccl_version', '')} status of {len(report['communicators'])} communicators"
        where = f"report {number + 1}"
        out.add("comm_ras", where=where, report=number, op="collective", listed=[], text=text)
        for place, comm in enumerate(report["communicators"]):
            if isinstance(comm, dict):
                odd += _communicator(comm, f"{where}, communicator {place + 1}", number, out)
            else:
                odd += 1
    if odd:
        text = f"{odd} ranks or communicators of the report have no readable counts; they were left out"
        out.problem("input.dirty_table", text, lost=odd)
    return bool(found)


def _communicator(comm: dict[str, Any], where: str, report: int, out: Reading) -> int:
    """Adds the rows of one communicator; returns how many of its ranks could not be read."""
    name = " ".join(str(comm[key])[:60] for key in ("hash", "secondary_hash") if comm.get(key))
    size = _whole(comm.get("size"))
    counts: dict[str, dict[int, list[int]]] = {}
    odd = 0
    ranks = comm.get("ranks")
    for entry in ranks[:MOST_RANKS] if isinstance(ranks, list) else ():
        rank = _whole(entry.get("rank")) if isinstance(entry, dict) else None
        counted = entry.get("collective_counts") if isinstance(entry, dict) else None
        if rank is None or not isinstance(counted, dict):
            odd += 1
            continue
        for op, count in counted.items():
            if (number := _whole(count)) is not None:
                counts.setdefault(str(op)[:40], {}).setdefault(number, []).append(rank)
    row = {"report": report, "comm": name or None, "name": None, "size": size}
    for op, groups in counts.items():
        if set(groups) == {0}:
            continue
        for count, members in sorted(groups.items()):
            shown = ", ".join(map(str, sorted(members)[:QUOTED])) + (", ..." if len(members) > QUOTED else "")
            said = {"text": f"{len(members)} ranks at {op} {count}: {shown}", "listed": sorted(members)}
            out.add("comm_ras", where=where, op=op, count=count, ranks=len(members), **said, **row)
    gone = _gone(comm.get("missing_ranks"))
    if gone:
        said = {"text": f"no data of ranks {', '.join(map(str, gone[:QUOTED]))}", "gone": gone}
        out.add("comm_ras", where=where, op="collective", ranks=len(gone), listed=[], **said, **row)
    return odd


def _gone(missing: Any) -> list[int]:
    """Ranks that the report has no data of."""
    entries = missing[:MOST_RANKS] if isinstance(missing, list) else []
    found = [_whole(e.get("rank") if isinstance(e, dict) else e) for e in entries]
    return sorted({rank for rank in found if rank is not None})


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 62 else None
