"""What is said of a host that stood still: host.gc_pause, host.stall, compilation, moves of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline_host import COLLECT, COMPILE, REARRANGE, SNAPSHOT
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    import re

    from numpy.typing import NDArray

    from moexray.analyse.timeline import Profile
    from moexray.analyse.worker_lines import WorkerLine
    from moexray.core.limits import Limits

__all__ = ["Spikes", "Stops", "compiled", "moved", "paused", "stalled", "written"]

MS = 1e6
STACKS = ("stacks of the launching thread (py-spy dump --native)", "scheduler trace (perf sched)",
          "a profile with the GIL enabled (with_stack=True, nsys --python-sampling)")  # fmt: skip
SHOWN = 8
BY_DEVICE = 0.7  # at most, where the trace holds no host and an idle device stands for it


@dataclass(frozen=True, slots=True)
class Spikes:
    """Steps that take far longer than the others.

    Args:
        start, end: ns.
        covered: Time with compiler frames in them, ns.
        hit: Whether these fill the excess.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    covered: NDArray[np.int64]
    hit: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Stops:
    """Silences of one rank, or of all ranks at once as one of them saw them.

    Args:
        profile: Whose.
        start, end: ns.
        lines: Of the log, where one tells why.
        step: Median step, ns.
        seen: The host's calls are in the trace; else the device was idle all the time.
        everyone: All ranks stood still together.
    """

    profile: Profile
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    lines: list[WorkerLine | None]
    step: float
    seen: bool = True
    everyone: bool = False

    def only(self, mask: NDArray[np.bool_]) -> Stops:
        """Some of them."""
        at = np.flatnonzero(mask).tolist()
        return replace(self, start=self.start[at], end=self.end[at], lines=[self.lines[i] for i in at])

    @property
    def ms(self) -> NDArray[np.float64]:
        """Lengths in ms."""
        return np.asarray((self.end - self.start) / MS)

    @property
    def who(self) -> str:
        """Subject of a claim."""
        return "all ranks" if self.everyone else self.profile.who

    def finding(
        self, id: str, confidence: float, claim: str, limits: Limits, **more: tuple[object, ...]
    ) -> Finding:  # fmt: skip
        """A warning with the silences as its evidence."""
        length = self.ms
        quoted = [Evidence(x.source, x.where, x.text) for x in self.lines if x is not None][:SHOWN]
        numbers = {"pauses": len(length), "pause_ms": float(np.median(length)),
                   "longest_ms": float(length.max()), "sum_ms": float(length.sum()),
                   "step_ms": self.step / MS}  # fmt: skip
        what = "silences of the launching thread" if self.seen else "idle times of the device"
        return Finding(
            id=id,
            severity="warn",
            confidence=confidence if self.seen else min(confidence, BY_DEVICE),
            claim=claim,
            subject=window(self.profile, self.start, self.end, everyone=self.everyone),
            value=float(length.max()) / 1e3,
            limit=limits.timeline.burst_steps * self.step / 1e9,
            unit="s",
            evidence=(
                Evidence(self.profile.source, f"{self.who}, {what}", pairs(numbers)),
                *_gap_rows(self.profile, self.start, self.end),
                *quoted,
            ),
            cost=float(length.sum()) / 1e3,
            **more,  # type: ignore[arg-type]
        )

    def record(self, frames: re.Pattern[str]) -> str:
        """What tells of it, in words."""
        told = len([x for x in self.lines if x])
        if told:
            return f"{told} log lines" + ("" if self.everyone else " of this rank")
        names = {self.profile.names[i] for i in self.profile.name[self.profile.named(frames)]}
        return f"'{', '.join(sorted(names)[:3])}'"

    def in_words(self) -> str:
        """How often and how long, and how long a step takes."""
        length = self.ms
        return (
            f"{len(length)} times for {np.median(length):.4g} ms in the median ({length.max():.4g} ms at "
            f"most, {length.sum():.4g} ms in sum; a step takes {self.step / MS:.3g} ms)"
        )


def window(
    profile: Profile, start: NDArray[np.int64], end: NDArray[np.int64], *, everyone: bool = False
) -> Subject:
    """Rank, steps and times of some windows."""
    step = profile.steps.of((start + end) // 2)
    label = profile.steps.label
    inside = step >= 0
    return Subject(
        rank=None if everyone else profile.rank,
        step_from=int(label[step[inside][0]]) if inside.any() else None,
        step_to=int(label[step[inside][-1]]) if inside.any() else None,
        t_from_ns=int(start[0]),
        t_to_ns=int(end[-1]),
    )


def _gap_rows(profile: Profile, start: NDArray[np.int64], end: NDArray[np.int64]) -> list[Evidence]:
    rows = []
    steps = profile.steps.of((start + end) // 2)
    for a, b, step in list(zip(start.tolist(), end.tolist(), steps.tolist(), strict=True))[:SHOWN]:
        name = f"step {int(profile.steps.label[step])}" if step >= 0 else "between steps"
        text = pairs({"gap_ms": (b - a) / MS, "from_ns": a})
        rows.append(Evidence(profile.source, f"{name}, launching thread", text))
    return rows


def paused(s: Stops, limits: Limits) -> Finding:
    """host.gc_pause."""
    claim = (
        f"{s.who}: its launching thread stood still {s.in_words()} while the garbage collector ran "
        f"({s.record(COLLECT)}); its launches came late."
    )
    return s.finding("host.gc_pause", 0.9, claim, limits, remedies=(remedy("host-freeze-gc"),))


def stalled(s: Stops, limits: Limits) -> Finding:
    """host.stall."""
    claim = (
        f"{s.who}: its launching thread stood still {s.in_words()} without any call, and nothing that was "
        "given says why."
    )
    more = {"remedies": (remedy("host-stacks"),), "settle_with": STACKS}
    return s.finding("host.stall", 0.6, claim, limits, **more)


def moved(s: Stops, limits: Limits) -> Finding:
    """ep.rearrange_stall."""
    claim = (
        f"{s.who}: serving stood still {s.in_words()} while experts were moved ({s.record(REARRANGE)})."
    )
    remedies = (remedy("eplb-async"), remedy("eplb-interval", by=""), remedy("eplb-fewer-moves"))
    return s.finding("ep.rearrange_stall", 0.9, claim, limits, remedies=remedies)


def written(s: Stops, limits: Limits) -> Finding:
    """mem.snapshot_overhead."""
    claim = (
        f"{s.who}: serving stood still {s.in_words()} while a memory snapshot was written "
        f"({s.record(SNAPSHOT)})."
    )
    remedies = (remedy("snapshot-light"), remedy("snapshot-idle"))
    return s.finding("mem.snapshot_overhead", 0.9, claim, limits, remedies=remedies)


def compiled(s: Stops, hit: NDArray[np.bool_], spikes: Spikes, limits: Limits) -> list[Finding]:
    """jit.compile_in_hot_path: compilation fills at least half of the times that this rank alone took.

    Args:
        s: Silences of the rank that cost time.
        hit: Those that a frame or a line explains by compilation.
        spikes: Slow steps of the rank; a silence inside one is not counted twice.
        limits: Thresholds.
    """
    told = s.only(hit)
    apart = ~_overlap((s.start, s.end), (spikes.start, spikes.end))
    inside = _overlap((spikes.start, spikes.end), (told.start, told.end))
    filled = spikes.hit | inside
    count = int(filled.sum() + (hit & apart).sum())
    total = int(len(filled) + apart.sum())
    least = 1 if hit.any() else limits.timeline.compile_spikes
    if count < least or count < limits.timeline.compile_share * total:
        return []
    start = np.concatenate([spikes.start[filled], s.start[hit & apart]])
    end = np.concatenate([spikes.end[filled], s.end[hit & apart]])
    took = np.concatenate([np.maximum(spikes.covered, 0)[filled], (s.end - s.start)[hit & apart]])
    took = np.where(took > 0, took, end - start)  # told by a line, not by frames
    order = np.argsort(start)
    named = told.record(COMPILE)
    numbers = {
        "spikes": total, "with_compile": count, "compile_ms": float(np.median(took)) / MS,
        "compile_sum_ms": float(took.sum()) / MS, "step_ms": s.step / MS,
        "longest_step_ms": float((end - start).max()) / MS,
    }  # fmt: skip
    quoted = [Evidence(x.source, x.where, x.text) for x in told.lines if x is not None][:SHOWN]
    return [
        Finding(
            id="jit.compile_in_hot_path",
            severity="warn",
            confidence=0.85 if s.seen else BY_DEVICE,
            claim=(
                f"{s.who} compiles kernels while serving ({named}): that fills {count} of {total} times in "
                f"which it alone took more than {limits.timeline.burst_steps:.0f} median steps "
                f"({np.median(took) / MS:.3g} ms each; a normal step takes {s.step / MS:.3g} ms)."
            ),
            subject=window(s.profile, start[order], end[order]),
            value=count / total,
            limit=limits.timeline.compile_share,
            unit="ratio",
            evidence=(Evidence(s.profile.source, f"{s.who}, {named}", pairs(numbers)), *quoted),
            remedies=(remedy("jit-warm-up"), remedy("jit-cache")),
            cost=float(took.sum()) / 1e9,
        )
    ]


def _overlap(
    windows: tuple[NDArray[np.int64], NDArray[np.int64]], others: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> NDArray[np.bool_]:
    """Whether each window (start, end) overlaps any of the others."""
    start, end = (x[:, None] for x in windows)
    return np.asarray(((start < others[1]) & (end > others[0])).any(axis=1))
