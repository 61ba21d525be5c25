"""`moexray timeline`: time of graph replays by operator, where the capture is among the traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.faces.numbers import counted, human

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.analyse.timeline import Profile

__all__ = ["graph_rows", "graph_text"]

SHOWN = 6  # operators in the text


def graph_rows(profiles: Iterable[Profile]) -> list[dict[str, Any]]:
    """Rows of `graphs` of the document `moexray.timeline/1`."""
    from moexray.analyse.graph_names import named_replays

    return [
        {
            "rank": profile.rank,
            "source": profile.source,
            "capture": replays.capture,
            "replays": replays.replays,
            "kernels": len(replays.operators),
            "agreement_ratio": replays.agreement,
            "operators": [
                {"operator": operator or None, "kernels": kernels, "dur_ns": ns}
                for operator, kernels, ns in replays.time_by_operator(profile)
            ],
        }
        for profile, replays in named_replays(profiles)
    ]


def graph_text(rows: list[dict[str, Any]]) -> list[str]:
    """The same for the screen; nothing without a graph."""
    out = []
    for row in rows:
        total = sum(o["dur_ns"] for o in row["operators"]) or 1
        who = f"rank {row['rank']}" if row["rank"] is not None else row["source"]
        size = f"{counted(row['kernels'], 'kernel')}, {counted(row['replays'], 'replay')}"
        out += ["", f"{who}: a graph of {size}; its kernels, named by the capture in {row['capture']}:"]
        shown = [
            f"{o['operator'] or 'no operator'} {o['dur_ns'] / total:.1%} ({human(o['dur_ns'] / 1e9, 's')})"
            for o in row["operators"][:SHOWN]
        ]
        out.append("  " + ", ".join(shown) + (", ..." if len(row["operators"]) > SHOWN else ""))
    return out
