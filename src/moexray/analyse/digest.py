"""A run of one rank, cut down to what must meet the other ranks: a few per cent of it.

Glossary: a *digest* keeps every small table, and of a trace the communication, its launches and the steps.
Snapshots stay behind: what they say concerns one rank, and is said before the cut.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moexray.analyse.timeline import ANNOTATION, DRIVER, RUNTIME, Profile
from moexray.analyse.timeline_comm import POINT_TO_POINT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from moexray.core.run import Batch, Run

__all__ = ["OF_ONE_RANK", "digest"]

# Tables about the inside of one process; rules that need nothing else are applied before the cut.
OF_ONE_RANK = (
    "snapshot", "snapshot_segments", "snapshot_blocks", "snapshot_events", "snapshot_stacks",
    "snapshot_annotations", "snapshot_cost", "trace_memory", "memory_log",
)  # fmt: skip
STEP = "ProfilerStep#{}"


def digest(run: Run) -> Run:
    """The run without what concerns one rank alone.

    Args:
        run: All artefacts of one rank.

    Returns:
        A run that `core.store.save` writes; its traces are marked by the attr `digest`.
    """
    comm = {b.source: b for b in run.batches("trace_comm")}
    arrays = {n: b for n, b in run.arrays.items() if n not in (*OF_ONE_RANK, "trace", "trace_comm")}
    traces, kept_comm = [], []
    for batch in run.batches("trace"):
        if not len(batch.columns["ts_ns"]):
            continue
        about = comm.get(batch.source)
        trace, rows = _trace(batch, about)
        traces.append(trace)
        if about is not None:
            kept_comm.append(_comm(about, rows))
    if traces:
        arrays["trace"] = tuple(traces)
    if kept_comm:
        arrays["trace_comm"] = tuple(kept_comm)
    return replace(run, tables={n: r for n, r in run.tables.items() if n not in OF_ONE_RANK}, arrays=arrays)


def _trace(batch: Batch, about: Batch | None) -> tuple[Batch, NDArray[np.int64]]:
    """(the cut trace, the rows of the old one that were kept, in order)."""
    import numpy as np

    p = Profile(batch.source, batch.columns, batch.attrs, about.columns if about else None)
    rows = p.comm_rows
    calls = np.flatnonzero(p.of(RUNTIME, DRIVER) & (p.correlation >= 0))
    calls = calls[np.isin(p.correlation[calls], p.correlation[rows])]
    rows = np.union1d(np.union1d(rows, calls), p.named(POINT_TO_POINT, ANNOTATION))
    columns = {name: np.asarray(values)[rows] for name, values in batch.columns.items()}
    steps = p.steps
    used, columns["name"] = np.unique(columns["name"], return_inverse=True)
    names = [p.names[i] for i in used.tolist()] + [STEP.format(n) for n in steps.label.tolist()]
    more = {name: np.full(len(steps), -1, np.int64) for name in columns}
    more |= {
        "ts_ns": steps.start,
        "dur_ns": steps.duration,
        "category": np.full(len(steps), ANNOTATION),
        "name": len(used) + np.arange(len(steps)),
        "lane": np.full(len(steps), len(batch.attrs["lanes"])),
    }
    columns = {name: np.concatenate([values, more[name]]) for name, values in columns.items()}
    lanes = [*batch.attrs["lanes"], ("", "", "steps")]
    attrs = {**batch.attrs, "names": names, "lanes": lanes, "digest": True}
    return replace(batch, columns=columns, attrs=attrs), rows


def _comm(batch: Batch, rows: NDArray[np.int64]) -> Batch:
    """The metadata of the kept rows, numbered anew."""
    import numpy as np

    old = np.asarray(batch.columns["row"])
    mine = np.flatnonzero(np.isin(old, rows))
    columns: dict[str, Any] = {
        name: np.asarray(values)[mine] if hasattr(values, "dtype") else [values[i] for i in mine.tolist()]
        for name, values in batch.columns.items()
    }
    columns["row"] = np.searchsorted(rows, old[mine])
    return replace(batch, columns=columns)
