"""`moexray watch`: diagnoses a recording again and again, and counts the spikes with their causes.

Glossary: a *spike* is a stall of a latency series (analyse/latency.py); its *cause* is the finding about
time whose window it lies in, else, where no window can be compared, the first finding about time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.analyse.latency import load_series, stalls
from moexray.diagnose.engine import diagnose
from moexray.live.metrics import TIMED, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.core.finding import Finding
    from moexray.core.run import Run
    from moexray.diagnose.engine import Diagnosis
    from moexray.live.folder import Folder

__all__ = ["Report", "Spike", "Watch", "spikes"]

NS = 1e-9
MISMATCH = {"comm.size_mismatch": "size", "a2a.count_mismatch": "size", "comm.desync": "sequence"}
KEPT = 10_000  # spikes and findings that are remembered as told


@dataclass(frozen=True, slots=True)
class Spike:
    """A stall and why.

    Args:
        source: File of the series.
        line: Line of its longest value.
        rank: Rank, if the file says so.
        seconds: Its longest value.
        cause: A verdict id of TIMED, or `unknown`.
    """

    source: str
    line: int
    rank: int | None
    seconds: float
    cause: str


@dataclass(frozen=True, slots=True)
class Report:
    """What one look found that was not told before.

    Args:
        diagnosis: Of the whole window.
        findings: New ones, by id and subject.
        spikes: New ones.
    """

    diagnosis: Diagnosis
    findings: tuple[Finding, ...]
    spikes: tuple[Spike, ...]


def spikes(run: Run, found: Diagnosis) -> list[Spike]:
    """Every stall of the latency series with its cause."""
    timed = [f for f in found.findings if f.id in TIMED and not f.cannot_tell]
    return [
        Spike(s.source, stall.line, s.rank, stall.value_s, _cause(timed, stall.start_s, stall.end_s, s.clock))
        for s in load_series(run)
        for stall in stalls(s)
    ]


def _cause(timed: list[Finding], start_s: float, end_s: float, clock: str) -> str:
    """The finding whose window the stall meets; the first one where there is no common clock."""
    comparable = clock == "epoch" and math.isfinite(start_s)
    for f in timed:
        a, b = f.subject.t_from_ns, f.subject.t_to_ns
        if not comparable or a is None:
            return f.id
        if a * NS <= end_s and (b is None or start_s <= b * NS):
            return f.id
    return UNKNOWN


class Watch:
    """Looks at a folder and remembers what it has told.

    Args:
        folder: What is read; its metrics are brought up to date by the same reading.
        every_s: Seconds between two looks, for the exporter.
        tell: Called with each report.
    """

    def __init__(
        self, folder: Folder, every_s: float = 5.0, tell: Callable[[Report], None] | None = None
    ) -> None:
        self.folder, self.every_s, self._tell = folder, every_s, tell
        self._told: dict[tuple[object, ...], None] = {}
        for cause in (*TIMED, UNKNOWN):  # at 0 from the start: `increase` sees the first spike
            folder.scope().add("moex_spike_total", 0, cause)

    def update(self) -> Report | None:
        """One look.

        Returns:
            What is new; None if no file changed since the last look.
        """
        run = self.folder.update()
        if run is None:
            return None
        found = diagnose(run)
        new_spikes = tuple(s for s in spikes(run, found) if self._is_new(s.source, s.line, s.rank))
        for spike in new_spikes:
            self.folder.scope(spike.rank).add("moex_spike_total", 1, spike.cause)
        new = tuple(
            f for f in found.findings
            if self._is_new(f.id, f.subject.rank, f.subject.device, f.subject.layer, f.subject.t_from_ns)
        )  # fmt: skip
        for finding in new:
            if kind := MISMATCH.get(finding.id):
                self.folder.scope(finding.subject.rank).add("moex_alltoall_mismatch_total", 1, kind)
        report = Report(found, new, new_spikes)
        if self._tell:
            self._tell(report)
        return report

    def _is_new(self, *key: object) -> bool:
        if key in self._told:
            return False
        self._told[key] = None
        while len(self._told) > KEPT:
            del self._told[next(iter(self._told))]
        return True
