"""All-to-all exchanges against what their bytes should cost: alpha-beta, inside a node and between nodes.

Cost of one exchange: alpha x peers + the largest of what any rank sends or receives inside its node / beta of
the node and between nodes / beta of the network. Utilisation is cost / transfer; above 1 the links are
faster than the ones assumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline_edges import element_bytes, splits
from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moexray.analyse.timeline_comm import Collectives
    from moexray.core.limits.comm import CommLimits
    from moexray.core.run import Run

__all__ = ["Exchange", "exchanges", "nodes"]

ALL_TO_ALL = lazy(r"all_?to_?all", re.IGNORECASE)
MOST = 512  # exchanges of one operation that are looked at, spread over all


@dataclass(frozen=True, slots=True)
class Exchange:
    """One all-to-all operation of a capture; medians over its exchanges.

    Args:
        op, group: As recorded.
        count: Exchanges looked at.
        ranks: Members.
        hot_rank: The one that sends or receives most in most of them.
        hot_bytes: What it sends or receives to or from others, the larger.
        mean_bytes: The same, mean over the ranks.
        between_bytes: The part of hot_bytes that leaves its node.
        transfer_s: From the last arrival to the end.
        cost_s: By alpha and beta.
    """

    op: str
    group: str | None
    count: int
    ranks: int
    hot_rank: int
    hot_bytes: float
    mean_bytes: float
    between_bytes: float
    transfer_s: float
    cost_s: float

    @property
    def utilisation(self) -> float:
        """Cost / transfer."""
        return self.cost_s / self.transfer_s if self.transfer_s > 0 else float("nan")


def nodes(run: Run) -> dict[int, str]:
    """Rank -> host, from the lines in which NCCL starts its largest communicator; {} if there are none."""
    started = [r for r in run.rows("comm_link") if r["kind"] == "init" and r["rank"] is not None]
    most = max((r["ranks"] or 0 for r in started), default=0)
    return {
        int(r["rank"]): str(r["process"]).partition(":")[0] for r in started if (r["ranks"] or 0) == most
    }


def exchanges(c: Collectives, host: Mapping[int, str], limits: CommLimits) -> list[Exchange]:
    """Every all-to-all operation whose sizes are recorded on all ranks."""
    kinds: dict[tuple[str, str | None], list[int]] = {}
    for column in np.flatnonzero(c.present.all(axis=0) & c.complete).tolist():
        if ALL_TO_ALL.search(str(c.op[column])):
            meta, at = c.profiles[0].comm, c.profiles[0].comm_at.get(int(c.row[0, column]))
            group = None if meta is None or at is None else meta["group"][at]
            kinds.setdefault((str(c.op[column]), group), []).append(column)
    found = []
    for (op, group), columns in kinds.items():
        some = columns[:: max(1, len(columns) // MOST)]
        moved = [x for x in (_moved(c, column, host) for column in some) if x is not None]
        if moved:
            found.append(_exchange(c, (op, group), [i for i, _ in moved], [m for _, m in moved], limits))
    return found


def _moved(c: Collectives, column: int, host: Mapping[int, str]) -> tuple[int, np.ndarray] | None:
    """(column, [ranks, 4] bytes sent and received inside the node, sent and received between nodes)."""
    count = len(c.profiles)
    out = np.zeros((count, 4))
    where = [host.get(p.rank if p.rank is not None else i, "") for i, p in enumerate(c.profiles)]
    for rank, profile in enumerate(c.profiles):
        at = profile.comm_at.get(int(c.row[rank, column]))
        if profile.comm is None or at is None:
            return None
        width = element_bytes(profile.comm["dtype"][at])
        if width is None:
            return None
        rows = splits(c, rank, column)
        for way, name in enumerate(("in_elements", "out_elements")):
            total = float(profile.comm[name][at]) * width
            if total < 0:
                return None
            share = np.array(rows[way] or [1] * count, float)
            if len(share) != count:
                return None
            part = total * share / max(share.sum(), 1.0)
            away = np.array([h != where[rank] for h in where])
            mine = np.arange(count) == rank
            out[rank, way] = part[~away & ~mine].sum()
            out[rank, 2 + way] = part[away].sum()
    return column, out


def _exchange(
    c: Collectives, kind: tuple[str, str | None], columns: list[int], moved: list[np.ndarray],
    limits: CommLimits,
) -> Exchange:  # fmt: skip
    every = np.array(moved)  # [exchanges, ranks, 4]
    inside, between = every[:, :, :2], every[:, :, 2:]
    load = (inside + between).max(axis=2)
    hot = int(np.bincount(load.argmax(axis=1), minlength=load.shape[1]).argmax())
    slowest = np.maximum(
        inside.max(axis=(1, 2)) / limits.node_bytes_per_s, between.max(axis=(1, 2)) / limits.net_bytes_per_s
    )
    cost = limits.exchange_alpha_s * (load.shape[1] - 1) + slowest
    rank = c.profiles[hot].rank
    return Exchange(
        *kind, len(columns), load.shape[1], hot if rank is None else rank, float(np.median(load[:, hot])),
        float(np.median(load.mean(axis=1))), float(np.median(between[:, hot].max(axis=1))),
        float(np.median(c.transfer[columns])) / 1e9, float(np.median(cost)),
    )  # fmt: skip
