"""Lines of all-to-all libraries (DeepEP and its kin): timeouts, the low-latency assertion, limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.lines.comm_common import is_example, last_start, raw, window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]

TIMEOUT = lazy(
    r"\b(?:DeepEP|Buffer|MK|HybridEP|UCCL|pplx|NIXL)\b.{0,40}?\btimeout\b|receiver timeout", re.IGNORECASE
)
CPU = lazy(
    r"(?:DeepEP|EP) error:? timeout \((\w+) CPU\)|timeout \((dispatch|combine) CPU\)", re.IGNORECASE
)
PAIR = lazy(
    r"\b((?:src |dst )?(?:RDMA|IB|NVL|rank|node)(?: lane)?|src_rank|dst_rank|channel)\s*[:= ]\s*(\d+)",
    re.IGNORECASE,
)
ASSERTION = lazy(
    r"x\.size\(0\)\s*<=\s*\w*num_max_dispatch_tokens_per_rank|num_tokens\s*<=\s*\w*max_(?:dispatch_)?tokens_per_rank"
)
LIMIT = lazy(
    r"\b(?:\w*_)?num_max_dispatch_tokens_per_rank\b['\"]?\s*(?:[=:]|is set to|to|value:)?\s*['\"]?(\d+)",
    re.IGNORECASE,
)
BATCH = lazy(
    r"#new-tokens?: (\d+)|\bnum_(?:batched_|scheduled_|input_)?tokens['\"]?\s*[=:]\s*(\d+)"
    r"|batch of (\d+) tokens"
)
MODE = lazy(r"--disaggregation[-_]mode[= ](\w+)")
MODEL = lazy(r"--model(?:[-_]path)?[= ](\S+)")
NODE = lazy(r"(?:--node[-_]rank|--data[-_]parallel[-_]rank)[= ](\d+)")
PLACE = lazy(r"\b(?:rank|node|host|pod|worker)[ _-]?(\d+)\b", re.IGNORECASE)
FAILED = lazy(r"assert\w* (?:error|failed)|runtimeerror|epexception|failed:", re.IGNORECASE)
TIMEOUTS_KEPT = 20_000


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds a row per timeout, assertion and limit; an assertion carries the batch logged before it."""
    batches: dict[str | None, tuple[int, str]] = {}
    limits: set[tuple[Any, ...]] = set()
    asserted: dict[tuple[str | None, int | None], tuple[Line, dict[str, Any]]] = {}  # the latest counts
    timeouts: list[tuple[Line, dict[str, Any]]] = []
    for at, line in enumerate(lines):
        text = raw(line)
        low = text.lower()
        if "token" in low and (m := BATCH.search(text)) is not None:
            batches[line.worker] = batches[None] = (int(m[1] or m[2] or m[3]), text)
        if "dispatch_tokens_per_rank" in low:
            _limit(lines, at, limits, out)
        if ("size(0)" in text or "tokens_per_rank" in text) and _asserts(lines, at):
            batch, quote = batches.get(line.worker) or batches.get(None) or (None, None)
            row = {"kind": "assertion", "batch": batch, "batch_text": quote, "rank": line.rank}
            asserted[line.worker, line.rank] = (line, row)
        if "timeout" in low and len(timeouts) < TIMEOUTS_KEPT and (found := _timeout(line, text)) is not None:
            timeouts.append((line, found))
    events = [*asserted.values(), *timeouts]
    start = last_start(lines) if events else 0
    for line, row in events:
        out.add(
            "a2a_event",
            where=f"line {line.number}",
            t_s=line.t_s,
            worker=line.worker,
            stale=line.number < start,
            text=raw(line).strip()[:1000],
            **row,
        )


def _asserts(lines: Sequence[Line], at: int) -> bool:
    """True if the line is a failed assertion; as program source or in a sentence it is none."""
    text = raw(lines[at])
    m = ASSERTION.search(window(lines, at, 1))
    if m is None or m.start() >= len(text):
        return False
    failed = FAILED.search(text[: m.start()])
    return failed is not None and not is_example(text, failed.start())


def _limit(lines: Sequence[Line], at: int, seen: set[tuple[Any, ...]], out: Reading) -> None:
    line, text = lines[at], raw(lines[at])
    whole = window(lines, at, 6) if text.rstrip().endswith("\\") else text
    listed = text.rstrip().upper().endswith("PER_RANK")  # a manifest: name and value on two lines
    for m in LIMIT.finditer(window(lines, at, 1) if listed else text):
        mode, model = MODE.search(whole), MODEL.search(whole)
        node = NODE.search(whole) or PLACE.search(text[: m.start()])
        scope = " ".join(x[1] for x in (mode, model) if x)
        where = f"node {node[1]}" if node else line.worker
        key = (int(m[1]), scope, where, line.rank)
        if key in seen or int(m[1]) == 0:
            continue
        seen.add(key)
        out.add(
            "a2a_event",
            where=f"line {line.number}",
            kind="limit",
            t_s=line.t_s,
            rank=line.rank,
            worker=line.worker,
            limit=int(m[1]),
            scope=scope,
            node=where,
            text=text.strip()[:1000],
        )


def _timeout(line: Line, text: str) -> dict[str, Any] | None:
    """What one line of a kernel's or the host's timeout says."""
    m = CPU.search(text)
    if m is not None:
        if is_example(text, m.start()):
            return None
        return {"kind": "cpu_timeout", "phase": (m[1] or m[2]).lower(), "rank": line.rank}
    m = TIMEOUT.search(text)
    if m is None or is_example(text, m.start()):
        return None
    values = {
        re.sub(r"[ _]lane$", "", k.lower()).replace(" ", "_"): int(v)
        for k, v in PAIR.findall(text[m.start() :])
    }
    if not values:
        return None
    low = text.lower()
    node = values.get("rdma", values.get("ib", values.get("node")))
    rank = values.get("rank")
    return {
        "kind": "timeout",
        "rank": rank if rank is not None else line.rank,
        "phase": "combine" if "combine" in low else "dispatch" if "dispatch" in low else None,
        "role": "sender" if "sender" in low else "forwarder" if "forwarder" in low else "receiver",
        "receiver": (
            f"rank {rank}" if node is None and rank is not None else f"node {node} gpu {values.get('nvl')}"
        ),
        "src_node": values.get("src_rdma", values.get("src_ib", values.get("src_node"))),
        "src_gpu": values.get("src_nvl"),
        "src_rank": values.get("src_rank"),
    }
