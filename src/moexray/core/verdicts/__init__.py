"""The catalogue of verdicts: one entry for each id that `diagnose` may print."""

from __future__ import annotations

from moexray.core.verdicts import comm, engine, gpu, inputs, memory, requests, routing, snapshot, timeline
from moexray.core.verdicts.verdict import Verdict

__all__ = ["VERDICTS", "Verdict"]

VERDICTS: tuple[Verdict, ...] = (
    *memory.VERDICTS,
    *snapshot.VERDICTS,
    *gpu.VERDICTS,
    *inputs.VERDICTS,
    *engine.VERDICTS,
    *routing.VERDICTS,
    *comm.VERDICTS,
    *timeline.VERDICTS,
    *requests.VERDICTS,
)
