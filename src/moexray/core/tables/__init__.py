"""Every table of moexray, one file a subject. docs/tables.md is generated from this tuple."""

from __future__ import annotations

from moexray.core.tables import (
    bench,
    comm,
    gpu,
    logs,
    memory,
    metrics,
    numerics,
    routing,
    snapshot,
    timeline,
)

__all__ = ["TABLES"]

TABLES = (
    *logs.TABLES,
    *memory.TABLES,
    *snapshot.TABLES,
    *gpu.TABLES,
    *comm.TABLES,
    *routing.TABLES,
    *timeline.TABLES,
    *bench.TABLES,
    *metrics.TABLES,
    *numerics.TABLES,
)
