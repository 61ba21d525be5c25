"""Compares what ranks say they sent with what ranks say they received, edge by edge.

S[i][j] is what i sends to j, R[j][i] what j receives from i: correct if R is the transpose of S in
every cell. Row and column sums may differ freely, that is load and no fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Batch

__all__ = ["Comparison", "Outlier", "compare", "dense", "slow_pairs"]


EVEN = 1.01  # busiest rank / mean up to which amounts count as even
UNEVEN_PAIRS_SHOWN = 64


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two matrices of one exchange.

    Args:
        sent: File that tells what was sent.
        received: File that tells what was received.
        pairs: Pairs that both state.
        differing: (sender, receiver, sent, received), largest difference first.
        labelled: Both say which index is the sender.
        total_sent: Sum over the pairs.
        total_received: The same of the other matrix.
        busiest: Rank with the largest sum of either side.
        uneven: Its sum / mean over ranks; 1 if even within 1 %.
    """

    sent: str
    received: str
    pairs: int
    differing: tuple[tuple[int, int, float, float], ...]
    labelled: bool
    total_sent: float
    total_received: float
    busiest: int
    uneven: float

    @property
    def certain(self) -> tuple[bool, int]:
        """Order of trust: labelled first, then few differences."""
        return self.labelled, -len(self.differing)


@dataclass(frozen=True, slots=True)
class Outlier:
    """Pairs whose waits are far above the median: one pair, all of one source, or all of one receiver."""

    kind: str  # pair, source, receiver, rank
    ranks: tuple[int, ...]
    worst: float
    median: float
    pairs: tuple[tuple[int, int], ...]  # (receiver, source)


def dense(batch: Batch) -> tuple[list[int], Any]:
    """Ranks and the matrix [row, col] of a batch; NaN where a cell is missing."""
    rows, cols = np.asarray(batch.columns["row"]), np.asarray(batch.columns["col"])
    ranks = sorted({*rows.tolist(), *cols.tolist()})
    place = {r: i for i, r in enumerate(ranks)}
    matrix = np.full((len(ranks), len(ranks)), np.nan)
    at = ([place[r] for r in rows.tolist()], [place[c] for c in cols.tolist()])
    matrix[at] = np.asarray(batch.columns["value"], dtype=np.float64)
    return ranks, matrix


def compare(batches: Sequence[Batch], agreeing: float) -> list[Comparison]:
    """Pairs up matrices of the same ranks and call, and compares each pair of them.

    Args:
        batches: Batches of a2a_matrix.
        agreeing: Share of pairs that must agree for two matrices to be about one exchange.
    """
    calls: dict[tuple[Any, ...], list[Batch]] = {}
    for batch in batches:
        if batch.attrs["quantity"] != "wait":
            calls.setdefault((batch.attrs["slice"], batch.attrs["size"]), []).append(batch)
    out: list[Comparison] = []
    for group in calls.values():
        best = [c for a, b in combinations(group, 2) if (c := _compare(a, b, agreeing)) is not None]
        used: set[str] = set()
        for c in sorted(best, key=lambda c: (len(c.differing), not c.labelled)):
            if not {c.sent, c.received} & used or c.sent == c.received:
                used |= {c.sent, c.received} if c.sent != c.received else set()
                out.append(c)
    return out


def _compare(a: Batch, b: Batch, agreeing: float) -> Comparison | None:
    """None where both tell the same side, or too few pairs agree to be about the same exchange."""
    said = (a.attrs["quantity"], b.attrs["quantity"])
    if said[0] is not None and said[0] == said[1]:
        return None
    sides = (_side(a), _side(b))
    if (sides[0] == "received" and sides[1] != "received") or (sides[1] == "sent" and sides[0] != "sent"):
        a, b = b, a
    ranks, first = dense(a)
    other, second = dense(b)
    if ranks != other:
        return None
    labelled = a.attrs["rows_are"] is not None and b.attrs["rows_are"] is not None
    left = first.T if a.attrs["rows_are"] == "receiver" else first
    readings = [second.T if b.attrs["rows_are"] == "receiver" else second]
    if not labelled:
        readings = [second, second.T]
    tried = [(left, right, _differences(left, right)) for right in readings]
    sent, received, wrong = min(tried, key=lambda t: int(t[2].sum()))
    both = ~np.isnan(sent) & ~np.isnan(received)
    number = int(both.sum())
    if number == 0 or wrong.sum() > (1 - agreeing) * number:
        return None
    at = np.argwhere(wrong)
    cells = sorted(
        ((ranks[i], ranks[j], float(sent[i, j]), float(received[i, j])) for i, j in at.tolist()),
        key=lambda c: (-abs(c[2] - c[3]), c),
    )
    busiest, uneven = _busiest(ranks, sent)
    return Comparison(
        a.source,
        b.source,
        number,
        tuple(cells[:UNEVEN_PAIRS_SHOWN]),
        labelled,
        float(sent[both].sum()),
        float(received[both].sum()),
        busiest,
        uneven,
    )


def _side(batch: Batch) -> str | None:
    """What a matrix tells: its header or key says so, else rows of senders are what was sent."""
    if batch.attrs["quantity"] in ("sent", "received"):
        return str(batch.attrs["quantity"])
    return {"sender": "sent", "receiver": "received"}.get(batch.attrs["rows_are"])


def _differences(sent: Any, received: Any) -> Any:
    both = ~np.isnan(sent) & ~np.isnan(received)
    return both & ~np.isclose(np.nan_to_num(sent), np.nan_to_num(received), rtol=1e-9, atol=1e-9)


def _busiest(ranks: list[int], sent: Any) -> tuple[int, float]:
    """Rank with the largest sent or received sum, over the mean."""
    sums = np.stack([np.nansum(sent, axis=1), np.nansum(sent, axis=0)])
    mean = sums.mean()
    if mean <= 0:
        return ranks[0], 1.0
    i = int(np.unravel_index(int(sums.argmax()), sums.shape)[1])
    ratio = float(sums.max() / mean)
    return ranks[i], ratio if ratio > EVEN else 1.0


def slow_pairs(batch: Batch, ratio: float) -> Outlier | None:
    """What stands out in a matrix of waits, rows being receivers.

    A source that all wait for is late or slow; if it also waits long itself, its link is slow in
    both directions; single pairs are a slow link. Ranks are compared with the pairs that do not
    concern them, so that half of a small matrix may be slow.
    """
    ranks, matrix = dense(batch)
    if batch.attrs["rows_are"] == "sender":
        matrix = matrix.T
    matrix[np.eye(len(ranks), dtype=bool)] = np.nan  # nobody waits for itself
    if len(ranks) < 3 or np.isnan(matrix).sum() > len(ranks):
        return None
    sources, receivers = set(), set()
    for i in range(len(ranks)):
        rest = np.delete(np.delete(matrix, i, axis=0), i, axis=1)
        usual = float(np.nanmedian(rest))
        if usual > 0 and np.nanmin(matrix[:, i]) >= ratio * usual:
            sources.add(i)
        if usual > 0 and np.nanmin(matrix[i]) >= ratio * usual:
            receivers.add(i)
    both = sources & receivers
    for kind, chosen in (("rank", both), ("source", sources), ("receiver", receivers)):
        if chosen and 2 * len(chosen) <= len(ranks):
            return _outlier(ranks, matrix, kind, sorted(chosen))
    median = float(np.nanmedian(matrix))
    at = np.argwhere(np.nan_to_num(matrix) >= ratio * median) if median > 0 else np.empty((0, 2), dtype=int)
    if not len(at) or 4 * len(at) > len(ranks) * (len(ranks) - 1):
        return None
    pairs = tuple((ranks[i], ranks[j]) for i, j in sorted(at.tolist(), key=lambda c: -matrix[c[0], c[1]]))
    return Outlier("pair", (), float(np.nanmax(matrix)), median, pairs[:UNEVEN_PAIRS_SHOWN])


def _outlier(ranks: list[int], matrix: Any, kind: str, chosen: list[int]) -> Outlier:
    """The pairs of the chosen ranks against all others."""
    mine = np.zeros(matrix.shape, dtype=bool)
    if kind in ("rank", "source"):
        mine[:, chosen] = True
    if kind in ("rank", "receiver"):
        mine[chosen, :] = True
    mine &= ~np.isnan(matrix)
    pairs = tuple((ranks[i], ranks[j]) for i, j in np.argwhere(mine).tolist())
    usual = float(np.nanmedian(np.where(mine, np.nan, matrix)))
    return Outlier(
        kind, tuple(ranks[i] for i in chosen), float(matrix[mine].max()), usual, pairs[:UNEVEN_PAIRS_SHOWN]
    )
