"""Series of the same quantity, of several ranks or devices, as lines of one chart."""

from collections.abc import Mapping, Sequence
from typing import Any

from moexray.faces.numbers import counted
from moexray.faces.report.fields import Fields, each, listed, named

__all__ = ["joined"]

LINES = 6  # of one chart: as many as there are colours
_SAME = ("unit", "x_unit")


def joined(document: Fields) -> dict[str, Any]:
    """Give the document with each run of series that differ in their last word only as one of several lines.

    "step time, rank 0" and "step time, rank 1" become "step time" with the lines "rank 0" and "rank 1" if
    they have the same points in time. Series with marks or with lines of their own stay alone.
    """
    groups: list[list[Fields]] = []
    for fields in each(document, "series"):
        open_ = next((g for g in groups if len(g) < LINES and _alike(g[0], fields)), None)
        if open_ is None:
            groups.append([fields])
        else:
            open_.append(fields)
    return {**document, "series": [_one(group) for group in groups]}


def _alike(a: Fields, b: Fields) -> bool:
    plain = not any(listed(f, "marks") or listed(f, "also") or f.get("label") for f in (a, b))
    same = all(a.get(name) == b.get(name) for name in _SAME)
    return plain and same and bool(_parts(a)[1] and _parts(b)[1]) and _parts(a)[0] == _parts(b)[0] and (
        listed(a, "x") == listed(b, "x")
    )  # fmt: skip


def _parts(fields: Fields) -> tuple[str, str]:
    """Quantity and owner: ("step time", "rank 0")."""
    what, _, who = named(fields, "name").rpartition(", ")
    return what, who if what else ""


def _one(group: Sequence[Fields]) -> Mapping[str, Any]:
    first = group[0]
    if len(group) == 1:
        return first
    what, who = _parts(first)
    sources = list(dict.fromkeys(named(f, "source") for f in group))
    more = f" and {counted(len(sources) - 1, 'more file')}" if len(sources) > 1 else ""
    also = [{"label": _parts(f)[1], "y": listed(f, "y")} for f in group[1:]]
    return {**first, "name": what, "label": who, "also": also, "source": f"{sources[0]}{more}"}
