"""Lines about compilation: Triton, DeepGEMM, FlashInfer, torch.compile and anything that says so.

Kinds and fields:

    jit.compile   what, kernel, shape, seconds, during ("warm-up", "inference"): something was compiled
    jit.progress  what, percent: a progress line of a compile session
    jit.session   what: such a session begins
    jit.done      what, seconds: it ended
"""

from __future__ import annotations

import re
from typing import Any

from moexray.core.pattern import lazy

__all__ = ["JIT_WORDS", "jit_event"]

JIT_WORDS = ("jit", "compil", "warmup", "warm-up", "dynamo", "autotun")

TRITON = lazy(
    r"(?P<what>[\w.]+) kernel JIT compilation during (?P<during>inference|warm-?up)"
    r"(?:: (?P<kernel>[\w.<>]+)(?: \((?P<shape>[^)]*)\))?)?"
)
DEEPGEMM = lazy(
    r"(?P<what>DeepGEMM) JIT (?:code generation|[Cc]ompil\w+)(?: for)? ?<?(?P<kernel>[\w.]+)?>?:? ?"
    r"(?P<shape>[MNK]=[^.]*)?"
)
PROGRESS = lazy(
    r"(?P<what>DeepGEMM|Triton|FlashInfer|JIT|[Kk]ernel)[\w ().-]*?(?:warm-?up|compil\w+)[^%]{0,60}?"
    r"(?P<percent>\d{1,3}(?:\.\d+)?) ?%"
)
SESSION = lazy(r"Entering (?P<what>\w+) JIT .*?session")
FLASHINFER = lazy(r"(?P<finished>Finished )?[Ll]oading JIT ops: (?P<kernel>\w+)")
TORCH = lazy(
    r"torch\.compile (?:takes|took) (?P<total>[\d.]+) ?s"
    r"|Dynamo bytecode transform time: (?P<dynamo>[\d.]+) ?s"
    r"|[Cc]ompil(?:ing|ed) (?:a|the) graph for (?P<shape>[\w ]+?) (?:takes|took) (?P<graph>[\d.]+) ?s"
    r"|Recompiling function (?P<kernel>\S+)"
)
DONE = lazy(
    r"(?:compil\w+|warm-?up)\b.{0,40}?\b(?:finished|completed?|done|ended)\b"
    r"(?:.*?(?:in|took|after) (?P<amount>[\d.]+) ?s)?",
    re.IGNORECASE,
)
GENERIC = lazy(
    r"\bjit[- ]?compil(?:ing|ation)\b"
    r"|\b(?:compiling|recompiling|building) (?:new |missing )?(?:\w+ ){0,3}(?:kernel|module|extension|op)s?\b"
    r"|\bautotuning (?:kernel|function|\w+ for)\b",
    re.IGNORECASE,
)
TOOK = lazy(r"(?:took|in|takes|time:?) (?P<amount>[\d.]+) ?(?P<unit>ms|s|seconds)\b")
NEGATIVE = lazy(
    r"\b(?:no|without|skip(?:ped|ping)?|disabled?|disabling|enabled?|monitor|avoid\w*|cache hit|cached|not"
    r"|loaded from|off)\b",
    re.IGNORECASE,
)


def jit_event(text: str) -> tuple[str, dict[str, Any]] | None:
    """The kind and fields of a line about compilation; None for any other line."""
    low = text.lower()
    if not any(w in low for w in JIT_WORDS):
        return None
    named = _named(text)
    if named is not None or NEGATIVE.search(text):
        return named
    if m := DONE.search(text):
        return "jit.done", {"seconds": float(m["amount"])} if m["amount"] else {}
    if not GENERIC.search(text):
        return None
    took = TOOK.search(text)
    scale = 1000 if took and took["unit"] == "ms" else 1
    return "jit.compile", {"seconds": float(took["amount"]) / scale} if took else {}


def _named(text: str) -> tuple[str, dict[str, Any]] | None:
    """A line in the form of a compiler that we know."""
    if m := TRITON.search(text):
        during = "inference" if m["during"] == "inference" else "warm-up"
        return "jit.compile", _fields(what=m["what"], kernel=m["kernel"], shape=m["shape"], during=during)
    if m := SESSION.search(text):
        return "jit.session", {"what": m["what"]}
    if m := PROGRESS.search(text):
        return "jit.progress", {"what": m["what"], "percent": float(m["percent"])}
    if m := DEEPGEMM.search(text):
        return "jit.compile", _fields(what=m["what"], kernel=m["kernel"], shape=m["shape"])
    if m := FLASHINFER.search(text):
        return "jit.done" if m["finished"] else "jit.compile", _fields(what="FlashInfer", kernel=m["kernel"])
    if m := TORCH.search(text):
        seconds = m["total"] or m["dynamo"] or m["graph"]
        fields = _fields(what="torch.compile", kernel=m["kernel"], shape=m["shape"])
        return "jit.compile", fields | ({"seconds": float(seconds)} if seconds else {})
    return None


def _fields(**values: str | None) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v}
