"""Watchdog, dump-signal, lost-peer and exception lines of torch.distributed; process groups in text.

Versions differ in their prefix: "[E ProcessGroupNCCL.cpp:566] [Rank 1]" up to 2.0, "[PG 1 Rank 0]"
or "[PG 0 (default_pg) Rank 0]" in 2.1-2.4, "[PG ID 3 PG GUID 21(ep_group) Rank 0]" from 2.5 on.
"[rank13]" is the global rank, "[Rank 1]" the rank in the group, the GUID the group's global name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.lines.comm_common import introduced, is_example, last_start, raw, window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]

CAUGHT = lazy(
    r"(?:\[Rank (?P<rank>\d+)\]\s*)?Watchdog\s+caught\s+collective\s+operation\s+timeout:\s*Work\w+\("
    r"(?P<fields>.{0,400}?)\)\s*ran\s+for\s+(?P<ran>\d+)\s+milliseconds"
)
FIELD = lazy(r"(\w+)(?:\(ms\))?\s*=\s*(\[[\d, ]*\]|\w+)")
GROUP = lazy(
    r"\[PG (?:ID )?(?P<id>[\w.:-]+)(?: PG GUID (?P<guid>[\w.:-]+))?\s*(?:\((?P<desc>[^)\]]*)\))?"
    r" Rank (?P<rank>\d+)\]"
)
GLOBAL = lazy(r"\[(?:rank|default)(\d{1,6})\]")
WITHIN = lazy(r"\[Rank (\d{1,6})\]")
AT = lazy(r"(?:detected by watchdog at work(?: sequence id)?|Timeout at (?:\w+ )?work): (\d+)")
STATUS = lazy(
    r"last enqueued (?:\w+ )?work: (-?\d+), last completed(?: \w+)?(?: work)?: (-?\d+)", re.IGNORECASE
)
LOST = lazy(
    r"remote process exited or there was a network error|ncclRemoteError|connection (?:was )?"
    r"(?:closed|reset) by (?:remote )?peer",
    re.IGNORECASE,
)
EXCEPTION = lazy(
    r"^(?:\w+\.)*\w*(?:Error|Exception)\b(?:: |$)|^Traceback \(most recent call last\)|^Segmentation fault"
)
CONSEQUENCE = lazy(
    r"nccl|gloo|distbackend|watchdog|timed? ?out|connection|broken pipe|tcpstore|peer", re.IGNORECASE
)
WORLD = lazy(r"\bworld[_ ]size(?:\s+of)?\s*[=:]?\s*(\d{1,6})\b", re.IGNORECASE)
OPTIONS = lazy(r"initialization options: size: (\d+), global rank: (\d+)")
NODES = lazy(r"\b(\d{1,5}) nodes? [x×] (\d{1,3}) (?:gpus?|ranks|processes)\b", re.IGNORECASE)
PROCESSES = lazy(r"--nproc[-_]per[-_]node[= ](\d{1,3})\b")
NNODES = lazy(r"--nnodes[= ](\d{1,5})\b")
LISTED = lazy(
    r"\b(?:PG|process group|group)\b(?P<name>[^\[\]{}]{0,80}?)(?:ranks|members)?\s*[=:]?\s*"
    r"\[(?P<ranks>\d{1,6}(?:\s*,\s*\d{1,6})+)\]"
)
STUCK = lazy(r"watchdog (?:thread )?got stuck for \d+ seconds")
BARRIER = lazy(r"\bRanks? (?P<ranks>\d+(?:\s*,\s*\d+)*) failed to pass monitoredBarrier in \d+ ?ms")
LONGEST_MESSAGE = 1000  # characters kept of a line
EXCEPTIONS_KEPT = 2  # per rank: the first ones are nearest to the cause


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds one comm_report per rank and operation, and what the text says about groups."""
    reports: dict[tuple[Any, ...], dict[str, Any]] = {}
    for at, line in enumerate(lines):
        text = raw(line)
        low = text.lower()
        if "watchdog" in low or "worknccl(" in low or "work:" in low or "dump signal" in low:
            _timeouts(lines, at, reports)
        elif "monitoredbarrier" in low:
            _barrier(line, text, reports)
        elif "peer" in low or "remote process exited" in low or "ncclremoteerror" in low:
            _lost(line, text, reports)
        if line.rank is not None and (
            "Error" in text or "Exception" in text or "fault" in text or "Traceback" in text
        ):
            _exception(line, reports)
    start = last_start(lines) if reports else 0
    for report in reports.values():
        report["stale"] = report.pop("number") < start
        out.add("comm_report", **report)
    _groups(lines, out)


def _who(lines: Sequence[Line], at: int, text: str, start: int) -> int | None:
    """Global rank of the message: the tag nearest before it, else the prefix of a wrapped line above."""
    tags = GLOBAL.findall(text[:start])
    if tags:
        return int(tags[-1])
    if lines[at].rank is not None:
        return lines[at].rank
    if at and not text[:start].strip() and (above := GLOBAL.findall(raw(lines[at - 1]))):
        return int(above[-1])
    return None


def _report(
    reports: dict[tuple[Any, ...], dict[str, Any]], line: Line, key: tuple[Any, ...], **known: Any
) -> None:
    """Opens a record or fills the gaps of the one with the same key."""
    entry = reports.get(key)
    if entry is None:
        entry = reports[key] = {
            "where": f"line {line.number}",
            "number": line.number,
            "t_s": line.t_s,
            "repeats": line.repeats - 1,
        }
    entry["number"] = line.number  # the latest of its kind tells whether an engine started since
    for name, value in known.items():
        if value is not None and entry.get(name) is None:
            entry[name] = value
    if line.repeats > 1:
        entry["repeats"] = max(entry["repeats"], line.repeats - 1)


def _timeouts(lines: Sequence[Line], at: int, reports: dict[tuple[Any, ...], dict[str, Any]]) -> None:
    """Watchdog lines, also wrapped ones and several in one physical line."""
    line, own = lines[at], raw(lines[at])
    whole = own if own.rstrip().endswith(".") and "Watchdog caught" not in own else window(lines, at)
    whole = whole.replace("  ", " ")
    length = len(own.strip())
    if introduced(lines, at):
        return
    for m in CAUGHT.finditer(whole):
        if m.start() < length and "..." not in m["fields"] and not is_example(whole, m.start()):
            _caught(lines, at, whole, m, reports)
    for m in AT.finditer(whole):
        if m.start() < length and not is_example(
            whole, whole.rfind("[", 0, m.start()) if "[" in whole else m.start()
        ):
            _detected(lines, at, whole, m, reports)
    if (m2 := STUCK.search(own)) is not None and not is_example(own, m2.start()):
        rank = _who(lines, at, own, m2.start())
        _report(reports, line, ("stuck", rank), kind="stuck", rank=rank, text=own[:LONGEST_MESSAGE])
    g = GROUP.search(own) if "dump signal" in own else None
    if g is not None and (s := STATUS.search(whole, g.end())):
        rank = _who(lines, at, own, g.start())
        group = g["guid"] or g["id"]
        _report(
            reports,
            line,
            ("dump", rank, group),
            kind="dump_signal",
            rank=rank,
            **_group(g),
            enqueued=_number(s[1]),
            completed=_number(s[2]),
            text=own[:LONGEST_MESSAGE],
        )


def _caught(
    lines: Sequence[Line],
    at: int,
    whole: str,
    m: re.Match[str],
    reports: dict[tuple[Any, ...], dict[str, Any]],
) -> None:
    fields = dict(FIELD.findall(m["fields"]))
    seq = _int(fields.get("SeqNum"))
    op = fields.get("OpType")
    group_rank = _int(m["rank"])
    rank = _who(lines, at, whole, m.start())
    shape = fields.get("TensorShape")
    numel = _product(shape) if shape else None
    timeout = _int(fields.get("Timeout"))
    key = ("timeout", rank, None if rank is not None else group_rank, seq, op if seq is None else None)
    _report(
        reports,
        lines[at],
        key,
        kind="timeout",
        rank=rank,
        group_rank=group_rank,
        seq=seq,
        op=op,
        numel_in=_int(fields.get("NumelIn")) if numel is None else numel,
        numel_out=_int(fields.get("NumelOut")) if numel is None else numel,
        timeout_s=timeout / 1e3 if timeout is not None else None,
        ran_s=int(m["ran"]) / 1e3,
        text=_sentence(whole, m.end()),
    )


def _sentence(whole: str, end: int) -> str:
    """The message up to "before timing out.", without what a join put behind it."""
    stop = whole.find("timing out.", end, end + 30)
    return whole[: stop + 11 if stop > 0 else end][-LONGEST_MESSAGE:]


def _detected(
    lines: Sequence[Line],
    at: int,
    whole: str,
    m: re.Match[str],
    reports: dict[tuple[Any, ...], dict[str, Any]],
) -> None:
    """The second line of a report: its process group and how far the rank came."""
    groups = list(GROUP.finditer(whole, 0, m.start()))
    group = groups[-1] if groups else None
    within = WITHIN.findall(whole[: m.start()])
    start = group.start() if group else m.start()
    rank = _who(lines, at, whole, start)
    named: dict[str, Any] = _group(group) if group else {"group_rank": int(within[-1]) if within else None}
    status = STATUS.search(whole, m.end(), m.end() + 200)
    seq = int(m[1])
    key = ("timeout", rank, None if rank is not None else named["group_rank"], seq, None)
    known = reports.get(key)
    if known is not None and group is not None and known.get("group") is None:
        known["group_rank"] = named["group_rank"]  # the group's own line knows better
    _report(
        reports,
        lines[at],
        key,
        kind="timeout",
        rank=rank,
        seq=seq,
        **named,
        enqueued=_number(status[1]) if status else None,
        completed=_number(status[2]) if status else None,
        text=whole[start : m.end() + 120][:LONGEST_MESSAGE],
    )


def _group(m: re.Match[str]) -> dict[str, Any]:
    return {
        "group": m["guid"] or m["id"],
        "group_id": m["id"],
        "desc": m["desc"] or None,
        "group_rank": int(m["rank"]),
    }


def _lost(line: Line, text: str, reports: dict[tuple[Any, ...], dict[str, Any]]) -> None:
    m = LOST.search(text)
    if m is None or is_example(text, m.start()):
        return
    if re.search(r"nccl|gloo|processgroup|c10d", text, re.IGNORECASE) is None:
        return
    rank = GLOBAL.findall(text[: m.start()])
    who = int(rank[-1]) if rank else line.rank
    _report(reports, line, ("lost", who), kind="lost_peer", rank=who, text=text[:LONGEST_MESSAGE])


def _barrier(line: Line, text: str, reports: dict[tuple[Any, ...], dict[str, Any]]) -> None:
    """A monitored barrier says itself who did not come."""
    m = BARRIER.search(text)
    if m is not None and not is_example(text, m.start()):
        named = sorted({int(r) for r in m["ranks"].split(",")})
        key = ("barrier", tuple(named))
        _report(reports, line, key, kind="barrier", rank=line.rank, named=named, text=text[:LONGEST_MESSAGE])


def _exception(line: Line, reports: dict[tuple[Any, ...], dict[str, Any]]) -> None:
    message = line.text.strip()
    if not EXCEPTION.search(message) or CONSEQUENCE.search(message):
        return
    for n in range(EXCEPTIONS_KEPT):
        key = ("exception", line.rank, n)
        if key not in reports:
            _report(reports, line, key, kind="exception", rank=line.rank, text=message[:LONGEST_MESSAGE])
            return


def _groups(lines: Sequence[Line], out: Reading) -> None:
    """World size, sizes and members of groups, each once."""
    seen: set[tuple[Any, ...]] = set()

    def add(line: Line, **columns: Any) -> None:
        key = tuple(str(v) for v in columns.values())
        if key not in seen:
            seen.add(key)
            out.add("comm_group", where=f"line {line.number}", origin="log", **columns)

    for line in lines:
        text = raw(line)
        low = text.lower()
        if "world" in low and (m := WORLD.search(text)) and int(m[1]) > 0:
            add(line, group=None, desc="world", size=int(m[1]))
        if "nodes" in low and (m := NODES.search(text)):
            add(line, group=None, desc="world", size=int(m[1]) * int(m[2]))
        if "nproc" in low and (m := PROCESSES.search(text)):
            nodes = NNODES.search(text)
            add(line, group=None, desc="world", size=int(m[1]) * (int(nodes[1]) if nodes else 1))
        if "initialization options" in low and (m := OPTIONS.search(text)) and (g := GROUP.search(text)):
            add(line, group=g["guid"] or g["id"], group_id=g["id"], desc=g["desc"] or None, size=int(m[1]))
        if "[" in text and ("group" in low or "PG" in text) and (m := LISTED.search(text)):
            ranks = sorted({int(r) for r in m["ranks"].split(",")})
            add(line, **group_name(m["name"]), members=ranks, size=len(ranks))


def group_name(text: str) -> dict[str, Any]:
    """Name, id and description out of "PG 3 (GUID 21)", "ep_group", "PG ID 4 PG GUID 67(tp)"."""
    guid = re.search(r"GUID[ :=#]*([\w.-]+)", text, re.IGNORECASE)
    id_ = re.search(r"(?:^|\bPG|\bID|\bgroup)[ :=#]*(?:ID[ :=#]*)?(\d+)\b", text)
    word = re.search(r"\(?([A-Za-z]\w*(?:_\w+)*)\)?\s*:?\s*$", text.strip())
    desc = (
        word[1] if word and word[1].lower() not in ("pg", "guid", "id", "ranks", "members", "group") else None
    )
    number = id_[1] if id_ else None
    return {"group": guid[1] if guid else number, "group_id": number, "desc": desc}


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _number(text: str) -> int | None:
    """-1 stands for none yet."""
    return int(text) if int(text) >= 0 else None


def _product(shape: str) -> int:
    total = 1
    for part in shape.strip("[]").split(","):
        if part.strip():
            total *= int(part)
    return total
