"""What engines say in their logs: balancing, compilation, backends, load, pauses, start and readiness.

The kinds of the table `log` that this parser fills stand in engine_forms and engine_jit.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.lines.engine_forms import FORMS
from moexray.readers.lines.engine_jit import jit_event
from moexray.readers.lines.engine_phase import with_phases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]

# What a line of a very large log must hold to be kept; the figures of load (batch, stats) are not
# among them: there would be millions.
SNAPSHOT = lazy(
    r"(?P<begin>\b(?:writing|dumping|saving|taking)\b.{0,40}?)?"
    r"(?:memory|allocator|cuda)[\w ]{0,20}snapshot"
    r"(?P<end>.{0,60}?\b(?:written|saved|dumped|done|took|finished|completed)\b)?|_dump_snapshot\b|"
    r"\b(?P<past>wrote|saved|dumped)\b.{0,40}?(?:memory|allocator|cuda)[\w ]{0,20}snapshot",
    re.IGNORECASE,
)
NOT_WRITTEN = lazy(
    r"\b(?:not|disabled?|will be|would|failed|if|no|load(?:ed|ing)?|read)\b", re.IGNORECASE
)
ENTRIES = lazy(r"entries[=: ]+(\d[\d,]*)|(\d[\d,]*) (?:trace |history )?entries", re.IGNORECASE)
TRACES = lazy(r"(?:include_)?traces?[=: ]+(true|false|1|0)\b", re.IGNORECASE)
TOOK = lazy(
    r"(?:took|in|duration[=:]?|elapsed[=:]?|after)[ =]*([\d.]+) ?(ms|s|seconds|sec)\b", re.IGNORECASE
)
# Forms too special to stand in prose; other kinds need the form of a log line around them.
BARE = ("eplb.balance", "eplb.hotness", "eplb.done", "batch", "stats", "spec", "kv.transfer", "engine.rank")
BATCH = lazy(r"\b(Prefill|Decode|Mixed) batch\b")
BY_WORD = tuple((word, form) for form in FORMS for word in form.words)
BATCH_FIELDS = (
    ("new_tokens", lazy(r"#new-token: (\d+)")),
    ("cached", lazy(r"#cached-token: (\d+)")),
    ("transferring", lazy(r"#(?:transfer|transferring|inflight)-req: (\d+)")),
    ("accept_rate", lazy(r"accept rate: ([\d.]+)")),
    ("running", lazy(r"#running-req: (\d+)")),
    ("queued", lazy(r"#queue-req: (\d+)")),
    ("usage", lazy(r"token usage: ([\d.]+)")),
    ("throughput", lazy(r"gen throughput \(token/s\): ([\d.]+)")),
)


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds a row to `log` for each line of a known kind, with its phase (startup or serving)."""
    found: list[tuple[Line, str, dict[str, Any]]] = []
    for line in lines:
        text = line.text
        if len(text) < 8:
            continue
        event = _event(text)
        if event is not None and (line.known or line.t_s is not None or _is_bare(line, *event)):
            found.append((line, *event))
    for line, kind, fields, phase in with_phases(found):
        out.add(
            "log",
            where=f"line {line.number}",
            kind=kind,
            t_s=line.t_s,
            rank=line.rank,
            worker=line.worker,
            level=line.level,
            line=line.number,
            clock=line.clock,
            phase=phase,
            fields=fields,
            text=line.full or line.text,
        )


def _is_bare(line: Line, kind: str, fields: dict[str, Any]) -> bool:
    """Whether a line without the form of a log line is an event all the same; quoted it is a citation."""
    loose = kind == "eplb.balance" and "balancedness" not in fields
    return kind.startswith(BARE) and not loose and not line.quoted


def _event(text: str) -> tuple[str, dict[str, Any]] | None:
    """The kind and the fields of a message, or None."""
    if " batch" in text and (m := BATCH.search(text)):
        fields: dict[str, Any] = {"what": m[1].lower()}
        for name, pattern in BATCH_FIELDS:
            if value := pattern.search(text):
                fields[name] = _number(value[1])
        return ("batch", fields) if len(fields) > 1 else None
    for word, form in BY_WORD:
        if word in text and (m := form.pattern.search(text)):
            return form.kind, _tidy(form.kind, m.groupdict())
    if event := jit_event(text):
        return event
    if "napshot" in text and (m := SNAPSHOT.search(text)):
        return _snapshot(text, m)
    return None


def _number(text: str) -> int | float:
    plain = text.replace(",", "").rstrip(".")
    try:
        return int(plain)
    except ValueError:
        return float(plain)


def _tidy(kind: str, groups: dict[str, str | None]) -> dict[str, Any]:
    """Named groups as fields: numbers, durations in seconds, modes and scopes in one word."""
    fields: dict[str, Any] = {}
    for name, value in groups.items():
        if value is None or name in ("amount", "unit", "mode", "mode_after", "scope"):
            continue
        try:
            numeric = value[:1] in "-0123456789" and name != "backend"
            fields[name] = _number(value) if numeric else value.strip()
        except ValueError:
            fields[name] = value.strip()
    if amount := groups.get("amount"):
        unit = groups.get("unit") or "s"
        scale = {"m": 1e-3, "u": 1e-6}.get(unit[0], 1.0)
        fields["seconds"] = float(amount.rstrip(".").replace(",", "")) * scale
    if kind.startswith("eplb."):
        said = f"{groups.get('mode') or ''} {groups.get('mode_after') or ''}".lower()
        mode = next((m for m in ("profile", "async", "sync") if m in said), None)
        if mode:
            fields["mode"] = mode
        if fields.pop("dummy", None):
            fields["dummy"] = True
    if kind == "backend":
        fields["scope"] = _scope(f"{groups.get('scope') or ''}", fields.get("rest", ""), fields["backend"])
    return fields


def _scope(said: str, rest: str, backend: str) -> str:
    low = said.lower()
    for words, scope in (
        (("moe", "expert", "fused"), "moe"),
        (("all2all", "a2a", "alltoall"), "all2all"),
        (("attention", "attn", "mla"), "attention"),
        (("linear", "gemm"), "linear"),
    ):
        if any(w in low for w in words):
            return scope
    if "moe" in rest.lower()[:40]:
        return "moe"
    attention = ("attn", "fa3", "fa2", "flashinfer", "flashmla", "triton", "mla", "flash")
    return "attention" if not low.strip() and backend.lower().startswith(attention) else "other"


def _snapshot(text: str, m: re.Match[str]) -> tuple[str, dict[str, Any]] | None:
    if NOT_WRITTEN.search(text):
        return None
    begins = m["begin"] is not None and m["end"] is None and m["past"] is None
    if not (begins or m["end"] or m["past"] or "_dump_snapshot" in text):
        return None
    fields: dict[str, Any] = {"state": "begin" if begins else "end"}
    if e := ENTRIES.search(text):
        fields["entries"] = int((e[1] or e[2]).replace(",", ""))
    if t := TRACES.search(text):
        fields["traces"] = t[1].lower() in ("true", "1")
    if s := TOOK.search(text):
        fields["seconds"] = float(s[1]) / (1000 if s[2].lower() == "ms" else 1)
    return "mem.snapshot", fields
