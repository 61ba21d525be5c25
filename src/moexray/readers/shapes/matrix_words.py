"""Words by which matrices over pairs of ranks say who sends, who receives and what is counted."""

from __future__ import annotations

import re

from moexray.core.pattern import lazy

__all__ = ["direction", "directions", "is_key", "is_rank", "label", "quantity", "unit"]

SENDERS = frozenset({"src", "source", "from", "sender", "senders", "sending", "origin"})
RECEIVERS = frozenset({"dst", "dest", "destination", "to", "receiver", "receivers", "receiving", "target"})
RANKS = frozenset({"rank", "ranks", "peer", "gpu", "r", "", "ep", "worker", "device", "node", "id", "index"})
KEYS = frozenset(
    {"step", "layer", "iteration", "iter", "seq", "phase", "op", "collective", "call", "batch", "pass"}
)
SENT = frozenset({"sent", "send", "sends", "sendcounts", "input", "dispatched", "out", "tx"})
RECEIVED = frozenset({"received", "recv", "recvd", "recvs", "recvcounts", "output", "got", "in", "rx"})
WAITED = frozenset({"wait", "waits", "waited", "waiting", "cost", "latency", "delay", "stall", "elapsed"})
UNITS = {
    "ns": "ns",
    "us": "us",
    "ms": "ms",
    "s": "s",
    "sec": "s",
    "bytes": "bytes",
    "tokens": "tokens",
    "rows": "tokens",
    "elements": "elements",
    "numel": "elements",
}
LABEL = lazy(r"^(?P<word>[A-Za-z_ \-]*?)[_ \-]*(?P<index>\d{1,6})(?P<more>(?:[_ \-]+[A-Za-z]+)*)$")


def words(text: str) -> list[str]:
    """Lower-case words of a name: "recvCounts_us" -> recv, counts, us."""
    return [w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)]


def directions(text: str) -> list[str]:
    """Directions in the order in which a text names them: sender, receiver."""
    found = []
    for word in words(text):
        side = "sender" if word in SENDERS else "receiver" if word in RECEIVERS else None
        if side and side not in found:
            found.append(side)
    return found or _by_verb(text)


def _by_verb(text: str) -> list[str]:
    """"recv_rank" is the rank that receives."""
    named = set(words(text))
    if len(named) != 2 or not named & {"rank", "peer", "gpu"}:
        return []
    return ["sender"] if named & {"send", "tx"} else ["receiver"] if named & {"recv", "rx"} else []


def direction(text: str) -> str | None:
    """The one direction that a name holds, None if none or both."""
    found = directions(text)
    return found[0] if len(found) == 1 else None


def label(text: str) -> tuple[str, int] | None:
    """("dst", 3) of "dst3", "to_3" or "rank 3", ("src wait us", 0) of "src_0_wait_us"; None if no rank."""
    m = LABEL.match(text.strip())
    if m is None or not all(w in UNITS or w in SENT | RECEIVED | WAITED for w in words(m["more"])):
        return None
    named = words(m["word"])
    if all(w in RANKS or w in SENDERS or w in RECEIVERS or w in SENT | RECEIVED | WAITED for w in named):
        return m["word"] + m["more"], int(m["index"])
    return None


def is_rank(text: str) -> bool:
    """A column whose cells are ranks."""
    named = words(text)
    if _by_verb(text):
        return True
    return all(w in RANKS or w in SENDERS or w in RECEIVERS for w in named) and (
        bool(named) or not text.strip("\\/ ")
    )


def is_key(text: str) -> bool:
    """A column that tells which call a row belongs to."""
    return bool(set(words(text)) & KEYS)


def quantity(text: str) -> str | None:
    """wait, sent or received; None if the name does not say."""
    named = set(words(text))
    if named & WAITED:
        return "wait"
    sent, received = bool(named & SENT), bool(named & RECEIVED)
    return None if sent == received else "sent" if sent else "received"


def unit(text: str) -> str | None:
    """The unit that a name ends in."""
    return next((UNITS[w] for w in reversed(words(text)) if w in UNITS), None)
