"""Lines of all-to-all libraries (DeepEP and its kin): timeouts, the low-latency assertion, limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.readers.lines.comm_common import is_example, last_start, raw, window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["WORDS", "parse"]

WORDS = (
    "deepep",
    "receiver timeout",
    "dispatch_tokens_per_rank",
    "prefill batch",
    "new-token",
    "x.size(0)",
    "num_batched_tokens",
    "num_tokens",
    "node-rank",
    "node_rank",
)
TIMEOUT = re.compile(
    r"\b(?:DeepEP|Buffer|MK|HybridEP|UCCL|pplx|NIXL)\b.{0,40}?\btimeout\b|receiver timeout", re.IGNORECASE
)
CPU = re.compile(
    r"(?:DeepEP|EP) error:? timeout \((\w+) CPU\)|timeout \((dispatch|combine) CPU\)", re.IGNORECASE
)
PAIR = re.compile(
    r"\b((?:src |dst )?(?:RDMA|IB|NVL|rank|node)(?: lane)?|src_rank|dst_rank|channel)\s*[:= ]\s*(\d+)",
    re.IGNORECASE,
)
ASSERTION = re.compile(
    r"x\.size\(0\)\s*<=\s*\w*num_max_dispatch_tokens_per_rank|num_tokens\s*<=\s*\w*max_(?:dispatch_)?tokens_per_rank"
)
LIMIT = re.compile(
    r"\b(?:\w*_)?num_max_dispatch_tokens_per_rank\b['\"]?\s*(?:[=:]|is set to|to|value:)?\s*['\"]?(\d+)",
    re.IGNORECASE,
)
BATCH = re.compile(
    r"#new-tokens?: (\d+)|\bnum_(?:batched_|scheduled_|input_)?tokens['\"]?\s*[=:]\s*(\d+)"
    r"|batch of (\d+) tokens"
)
MODE = re.compile(r"--disaggregation[-_]mode[= ](\w+)")
MODEL = re.compile(r"--model(?:[-_]path)?[= ](\S+)")
NODE = re.compile(r"(?:--node[-_]rank|--data[-_]parallel[-_]rank)[= ](\d+)")
PLACE = re.compile(r"\b(?:rank|node|host|pod|worker)[ _-]?(\d+)\b", re.IGNORECASE)
TIMEOUTS_KEPT = 20_000


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds a row per timeout, assertion and limit; an assertion carries the batch logged before it."""
    start = last_start(lines)
    batches: dict[str | None, tuple[int, str]] = {}
    kept = 0
    limits: set[tuple[Any, ...]] = set()
    asserted: set[tuple[str | None, int | None]] = set()
    for at, line in enumerate(lines):
        text = raw(line)
        low = text.lower()
        if "token" in low and (m := BATCH.search(text)) is not None:
            batches[line.worker] = batches[None] = (int(m[1] or m[2] or m[3]), text)
        if "dispatch_tokens_per_rank" in low:
            _limit(lines, at, limits, out)
        if ("size(0)" in text or "tokens_per_rank" in text) and (m := ASSERTION.search(window(lines, at, 1))):
            key = (line.worker, line.rank)
            if m.start() < len(text) and key not in asserted and not _is_source(text, m.start()):
                asserted.add(key)
                batch, quote = batches.get(line.worker) or batches.get(None) or (None, None)
                out.add(
                    "a2a_event",
                    where=f"line {line.number}",
                    kind="assertion",
                    t_s=line.t_s,
                    rank=line.rank,
                    worker=line.worker,
                    batch=batch,
                    batch_text=quote,
                    stale=line.number < start,
                    text=text.strip()[:1000],
                )
        if "timeout" in low and kept < TIMEOUTS_KEPT:
            kept += _timeout(line, text, start, out)


def _is_source(text: str, start: int) -> bool:
    """The assertion as program source or as a sentence is no failure."""
    before = text[:start]
    failed = re.search(r"assert\w* (?:error|failed)|runtimeerror|epexception|failed:", before, re.IGNORECASE)
    return failed is None or is_example(text, failed.start())


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


def _timeout(line: Line, text: str, start: int, out: Reading) -> int:
    """One line of a kernel's or the host's timeout; returns how many rows it gave."""
    m = CPU.search(text)
    if m is not None:
        if is_example(text, m.start()):
            return 0
        out.add(
            "a2a_event",
            where=f"line {line.number}",
            kind="cpu_timeout",
            t_s=line.t_s,
            rank=line.rank,
            worker=line.worker,
            phase=(m[1] or m[2]).lower(),
            stale=line.number < start,
            text=text.strip()[:1000],
        )
        return 1
    m = TIMEOUT.search(text)
    if m is None or is_example(text, m.start()):
        return 0
    values = {
        re.sub(r"[ _]lane$", "", k.lower()).replace(" ", "_"): int(v)
        for k, v in PAIR.findall(text[m.start() :])
    }
    if not values:
        return 0
    low = text.lower()
    node = values.get("rdma", values.get("ib", values.get("node")))
    gpu = values.get("nvl")
    rank = values.get("rank")
    receiver = f"rank {rank}" if node is None and rank is not None else f"node {node} gpu {gpu}"
    out.add(
        "a2a_event",
        where=f"line {line.number}",
        kind="timeout",
        t_s=line.t_s,
        rank=rank if rank is not None else line.rank,
        worker=line.worker,
        phase="combine" if "combine" in low else "dispatch" if "dispatch" in low else None,
        role="sender" if "sender" in low else "forwarder" if "forwarder" in low else "receiver",
        receiver=receiver,
        src_node=values.get("src_rdma", values.get("src_ib", values.get("src_node"))),
        src_gpu=values.get("src_nvl"),
        src_rank=values.get("src_rank"),
        stale=line.number < start,
        text=text.strip()[:1000],
    )
    return 1
