"""The causal chain as a graph: boxes by depth from left to right, an arrow for each proven step."""

import re
from dataclasses import dataclass
from itertools import pairwise

from moexray.faces.chains import paths
from moexray.faces.report.fields import Fields, each, named
from moexray.faces.report.safe import short_id

__all__ = ["Arrow", "Box", "Graph", "graph"]

WIDE, HIGH = 214, 52  # of a box, in units of the drawing
ACROSS, DOWN = 74, 16  # between boxes
TIP = 10
MOST_BOXES = 40
LETTERS = 27  # of an id that fit into a box
_SHARE = re.compile(r"\bexcess_share_ratio=(-?[\d.]+)")


@dataclass(frozen=True, slots=True)
class Box:
    """A finding of the chain; x and y of its left upper corner."""

    id: str
    label: str
    x: int
    y: int
    severity: str
    note: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """A curve from cause to effect and its tip, as the data of two SVG paths."""

    cause: str
    effect: str
    curve: str
    tip: str


@dataclass(frozen=True, slots=True)
class Graph:
    """The drawing and its size; `left_out` ids did not fit."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    width: int
    height: int
    left_out: int = 0


def graph(document: Fields) -> Graph | None:
    """Lays the chain out: a box stands one column right of its last cause.

    Args:
        document: The diagnosis document; `chain` holds the edges, `findings` severity and share.

    Returns:
        None without a chain.
    """
    edges = [(short_id(e.get("from")), short_id(e.get("to"))) for e in each(document, "chain")]
    edges = [e for e in dict.fromkeys(edges) if e[0] and e[1] and e[0] != e[1]]
    depth: dict[str, int] = {}
    steps: dict[tuple[str, str], None] = {}  # those that only cut a longer way short are not drawn
    for path in paths(edges):
        steps |= dict.fromkeys(pairwise(path))
        for i, one in enumerate(path):
            if one not in path[:i]:  # the end of a circle stands already
                depth[one] = max(depth.get(one, 0), i)
    kept = sorted(depth, key=lambda one: depth[one])[:MOST_BOXES]
    if not kept:
        return None
    told = {short_id(f.get("id")): f for f in reversed(each(document, "findings"))}
    rows = [0] * (max(depth[one] for one in kept) + 1)
    boxes: dict[str, Box] = {}
    for one in kept:
        column = depth[one]
        x, y = column * (WIDE + ACROSS), rows[column] * (HIGH + DOWN)
        rows[column] += 1
        boxes[one] = _box(one, x, y, told.get(one, {}))
    arrows = [_arrow(boxes[a], boxes[b]) for a, b in steps if a in boxes and b in boxes]
    width, height = len(rows) * (WIDE + ACROSS) - ACROSS, max(rows) * (HIGH + DOWN) - DOWN
    return Graph(tuple(boxes.values()), tuple(arrows), width, height, len(depth) - len(kept))


def _box(one: str, x: int, y: int, finding: Fields) -> Box:
    texts = " ".join(named(e, "text") for e in each(finding, "evidence"))
    shares = _SHARE.findall(texts)
    severity = named(finding, "severity")
    rank = (finding.get("subject") or {}).get("rank") if isinstance(finding.get("subject"), dict) else None
    note = [f"rank {named({'rank': rank}, 'rank')[:8]}"] if rank is not None else []
    note += [f"{float(shares[-1]):.0%} of the excess"] if shares and _is_number(shares[-1]) else []
    label = one if len(one) <= LETTERS else one[: LETTERS - 1] + "…"
    severity = severity if severity in ("error", "warn", "info") else "info"
    return Box(one, label, x, y, severity, ", ".join(note))


def _is_number(text: str) -> bool:
    return text.count(".") <= 1 and any(c.isdigit() for c in text)


def _arrow(cause: Box, effect: Box) -> Arrow:
    """From the right edge of the cause to the left edge of the effect; backwards where they form a circle."""
    x1, y1 = cause.x + WIDE, cause.y + HIGH // 2
    x2, y2 = effect.x - TIP, effect.y + HIGH // 2
    bend = max(30, (x2 - x1) // 2)
    curve = f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
    return Arrow(cause.id, effect.id, curve, f"M{x2} {y2 - TIP // 2} l{TIP} {TIP // 2} l-{TIP} {TIP // 2} z")
