"""Log lines about memory that are no error: budgets, graph capture, growing buffers, host OOM, Xid.

Kinds in the table `log` and their fields (bytes as integers, absent where not printed):

    mem.budget         total, utilisation, budget, weights, non_torch, activation, kv, graphs (_bytes)
    mem.capture_begin  avail_bytes
    mem.capture_end    cost_bytes, avail_bytes, elapsed_s
    mem.activation     bytes, tokens, per_token_bytes, what (the line without its numbers)
    mem.custom_all_reduce  state: "off", "failed"
    host.oom_kill      by, pid, name, anon_rss_bytes, usage_bytes, limit_bytes, memcg
    host.killed        exit_code: a process died by signal 9, nobody said why
    host.not_oom       the container runtime says that memory was not the reason
    gpu.xid            xid, pci, pid, name
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.core.sizes import BINARY_UNITS
from moexray.readers.lines import words
from moexray.readers.lines.host_events import host_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]

_S = r"(\d+(?:\.\d+)?) ?([KMGT]i?B|bytes)"

_BUDGET: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, lazy(pattern, re.IGNORECASE))
    for name, pattern in (
        ("utilisation", r"(?:gpu_memory_|\b)utilization\s*(?:=|is|:|of)?\s*\(?\s*(0?\.\d+|1\.0+|1)\b"),
        ("utilisation", r"requested memory: (0?\.\d+|1\.0+) \(util\)"),
        ("total", rf"\d of {_S}\)"),
        ("total", rf"total[_ ]gpu[_ ]memory:? \(?{_S}"),
        ("budget", rf"requested (?:gpu )?memory(?: budget)?: {_S}"),
        ("budget", rf"\(util\), {_S}"),
        ("budget", rf"gpu_memory_utilization \([\d.]+\) = {_S}"),
        ("budget", rf"utilization is \([\d.]+, {_S}\)"),
        ("budget", rf"memory budget(?: of|:)? {_S}"),
        ("weights", rf"(?:model )?weights(?: memory)?(?: take|:| took)? ?{_S}"),
        ("weights", rf"model (?:weights|loading) (?:take|took) {_S}"),
        ("weights", rf"{_S} for (?:model )?weights?\b"),
        ("non_torch", rf"non[-_ ]torch(?:[-_ ][a-z]+){{0,3}}(?: takes|:| is)? {_S}"),
        ("non_torch", rf"{_S} for non-torch"),
        ("activation", rf"activation(?: peak)?(?: memory)?(?: takes|:) {_S}"),
        ("activation", rf"torch peak memory(?: increase)?: {_S}"),
        ("activation", rf"{_S} for peak activation"),
        ("kv", rf"kv[ _]cache(?: memory| budget| size)?(?: is|:) {_S}"),
        ("kv", rf"\bkv size: {_S}"),
        ("graphs", rf"{_S} for cuda ?graph"),
        ("graphs", rf"cuda graph memory: {_S}"),
    )
)
_BUDGET_WORDS = lazy(
    r"(?i)weights?\b|kv[ _]cache|KV size|memory[ _](?:budget|util|profil)|requested memory|non[-_ ]torch"
    r"|loading took"
)
_KV_PARTS = lazy(rf"(?i)\bK size: {_S}, V size: {_S}")
_CAPTURE = lazy(
    r"(?i)captur\w* (?:\w+ ){0,2}cuda graph (?:begin|end)|graph captur\w+ finished|capture_model took"
)
_AVAIL = lazy(rf"(?i)avail(?:able)?[ _](?:gpu[ _])?mem(?:ory)?\s*[=:]\s*{_S}")
_COST = lazy(rf"(?i)(?:mem(?:ory)? usage\s*[=:]|\btook|\bcost)\s*{_S}")
_ELAPSED = lazy(r"(?i)(?:elapsed:?|finished in)\s*(\d+(?:\.\d+)?) ?s")
_TOKENS = lazy(
    r"(?i)(?:#|\b)((?:[a-z]+_)*(?:tokens?|context|ctx|prefix|position|seq_?lens?|kv_len|(?:context|sequence|prompt|"
    r"ctx)[_ ]len(?:gth)?s?))\s*[=:]?\s*(\d[\d,]*)(?![\d.%/]|\s*(?:tokens?)?/s)"
    r"|(\d[\d,]*) ((?:[a-z]+ ){0,2}tokens?)\b(?!/s| per| ?/)"
)
_SUM = lazy(
    r"(?i)accum|context|ctx|total|prefix|seq|kv|position|so far"
)  # names of the sum, not of the chunk
_BUFFER_WORDS = (
    r"(?:buffer|activation|workspace|logits|alloc\w*|intermediate|temporar\w+|tensor|scratch|request\w*)"
)
_BUFFER = lazy(rf"(?i){_BUFFER_WORDS}\b[^\d;]{{0,60}}?{_S}(?! ?/s| ?per\b)")
_ANY_BUFFER = lazy(rf"(?i)\b{_BUFFER_WORDS}\b")
_ANY_SIZE = lazy(rf"{_S}(?! ?/s| ?per\b|/)")
_BYTES = lazy(r"(?i)\b\w*bytes\s*[=:]\s*(\d+)\b")
_PER_TOKEN = lazy(rf"(?i){_S}(?: per |/)token")
_NOT_ACTIVATION = lazy(
    r"(?i)kv[ _]?(?:cache|size)|throughput|weights?\b|per second|out of memory|pool end|free\b|budget"
)
_REDUCE_OFF = lazy(
    r"(?i)custom[ _]all[-_]?reduce (?:is|was|will be) (?:disabled|turned off|not (?:used|supported))"
)
_REDUCE_FAILED = lazy(
    r"(?i)custom_all_?reduce\.cuh?\S*[^\n]*(?:invalid argument|error)|error[^\n]*custom_all_?reduce\.cuh?"
    r"|cudaIpc(?:Get|Open)MemHandle\w*[^\n]*(?:invalid|fail|error)"
)
OFF_THE_BUS = 79  # Xid of "GPU has fallen off the bus". Source: NVIDIA's list of Xid errors
_DIGITS = lazy(r"\d[\d,]*(?:\.\d+)?")


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds rows of the kinds above to `log`."""
    for line in lines:
        text = line.text
        if len(text) < 8 or "failed with OOM on" in text:
            continue
        low = text.lower()
        if not any(w in low for w in words.MEMORY_EVENTS):
            continue
        found = host_event(text, low) or _event(text, low)
        if found:
            kind, fields = found
            out.add(
                "log",
                where=f"line {line.number}",
                kind=kind,
                t_s=line.t_s,
                rank=line.rank,
                worker=line.worker,
                level=line.level,
                fields=fields,
                text=(line.full or text)[:600],
            )
            if kind == "gpu.xid" and fields["xid"] == OFF_THE_BUS:
                at, bus = f"line {line.number}", fields["pci"].removeprefix("PCI:")
                out.add("gpu_event", where=at, kind="lost", t_s=line.t_s, bus=bus, text=text)


def _event(text: str, low: str) -> tuple[str, dict[str, Any]] | None:
    if "graph" in low and _CAPTURE.search(text):
        return _capture(text, low)
    if "custom" in low or "cudaipc" in low:
        if _REDUCE_FAILED.search(text):
            return "mem.custom_all_reduce", {"state": "failed"}
        if _REDUCE_OFF.search(text):
            return "mem.custom_all_reduce", {"state": "off"}
    if ("gib" in low or "gb" in low) and _BUDGET_WORDS.search(text):
        fields = _budget(text)
        if fields:
            return "mem.budget", fields
    if ("ib" in low or "gb" in low or "mb" in low or "bytes" in low) and (
        "token" in low or "context" in low or "seq" in low or "ctx" in low
    ):
        return _activation(text)
    return None


def _capture(text: str, low: str) -> tuple[str, dict[str, Any]]:
    avail, cost, elapsed = _AVAIL.search(text), _COST.search(text), _ELAPSED.search(text)
    fields: dict[str, Any] = {}
    if avail:
        fields["avail_bytes"] = _bytes(avail[1], avail[2])
    if "begin" in low and "end" not in low.partition("begin")[0]:
        return "mem.capture_begin", fields
    if cost:
        fields["cost_bytes"] = _bytes(cost[1], cost[2])
    if elapsed:
        fields["elapsed_s"] = float(elapsed[1])
    return "mem.capture_end", fields


def _budget(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, pattern in _BUDGET:
        m = pattern.search(text)
        if m is None:
            continue
        if name == "utilisation":
            fields.setdefault("utilisation", float(m[1]))
        else:
            fields.setdefault(f"{name}_bytes", _bytes(m[1], m[2]))
    if "kv_bytes" not in fields and (m := _KV_PARTS.search(text)):
        fields["kv_bytes"] = _bytes(m[1], m[2]) + _bytes(m[3], m[4])
    if "Load weight end" in text and (m := _COST.search(text)):
        fields["weights_bytes"] = _bytes(m[1], m[2])
    return fields if fields.keys() - {"utilisation"} else {}


def _activation(text: str) -> tuple[str, dict[str, Any]] | None:
    if _NOT_ACTIVATION.search(text):
        return None
    size, tokens = _buffer_size(text), _token_count(text)
    if size is None or tokens is None:
        return None
    per = _PER_TOKEN.search(text)
    return "mem.activation", {
        "bytes": size,
        "tokens": tokens,
        "per_token_bytes": _bytes(per[1], per[2]) if per else None,
        "what": _DIGITS.sub("#", text)[:200],
    }


def _buffer_size(text: str) -> int | None:
    """The size behind a word for a buffer, else the only size on a line that has such a word."""
    if m := _BUFFER.search(text):
        return _bytes(m[1], m[2])
    if not _ANY_BUFFER.search(text):
        return None
    sizes = _ANY_SIZE.findall(text)
    if len(sizes) == 1:
        return _bytes(*sizes[0])
    m = _BYTES.search(text) if not sizes else None
    return int(m[1]) if m else None


def _token_count(text: str) -> int | None:
    """The tokens so far: a name that means the sum goes before one that may be the chunk."""
    found = [(m[1] or m[4], m[2] or m[3]) for m in _TOKENS.finditer(text)]
    found = [x for x in found if not x[0].lower().startswith("max")]
    best = next((x for x in found if _SUM.search(x[0])), found[0] if found else None)
    return None if best is None else int(best[1].replace(",", ""))


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * BINARY_UNITS[unit.lower()])
