"""Exhibit: the matrices of an exchange as heat maps, ranks against ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moexray.core.run import Run

__all__ = ["matrices"]

MOST = 6  # matrices shown
MOST_CELLS = 20_000
OTHER_SIDE = {"sender": "receiver", "receiver": "sender"}


def matrices(run: Run) -> list[dict[str, Any]]:
    """One heat map per matrix of pairs; what is too large is cut to its first rows.

    Returns:
        Rows of `balance`: `line` names what a row stands for, `axis` what a column does. A row has no
        balancedness: rows and columns of an exchange may differ freely.
    """
    import numpy as np

    from moexray.analyse.comm_matrix import dense

    out: list[dict[str, Any]] = []
    for batch in run.batches("a2a_matrix")[:MOST]:
        ranks, cells = dense(batch)
        if not ranks:
            continue
        kept = cells[: max(1, MOST_CELLS // len(ranks))]
        line = batch.attrs["rows_are"] or "rank"
        quantity = batch.attrs["quantity"] or "values"
        out.append(
            {
                "source": batch.source,
                "title": f"All-to-all, {quantity} from rank to rank",
                "line": line,
                "axis": OTHER_SIDE.get(line, "rank"),
                "unit": batch.attrs["unit"] or "count",
                "columns": ranks,
                "layers": ranks[: len(kept)],
                "values": [[None if np.isnan(v) else float(v) for v in row] for row in kept],
                "balancedness": [],
            }
        )
    return out
