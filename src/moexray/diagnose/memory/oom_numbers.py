"""The order of tests for one out-of-memory record: pure arithmetic, no words.

Glossary:
    fragments: reserved by PyTorch but not allocated.
    non_torch: of this process, but outside PyTorch's allocator.
    other: on the device, but outside this process.
    short: what is missing beside free memory.
    at the margin: closer than the printed rounding plus one allocator granule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moexray.core.limits.memory import MemoryLimits

__all__ = ["Around", "Decision", "Figures", "decide"]


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers of one record in bytes; None is unknown, never 0."""

    request: int | None = None
    free: int | None = None
    total: int | None = None
    process: int | None = None
    allocated: int | None = None
    fragments: int | None = None
    private: int | None = None
    limit: int | None = None
    rounding: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Figures:
        """From a row of the table `oom`."""
        names = ("request", "free", "total", "process", "allocated", "fragments", "private", "limit")
        return cls(**{n: row.get(f"{n}_bytes") for n in names}, rounding=row.get("rounding") or {})

    @property
    def non_torch(self) -> int | None:
        """Of this process, outside PyTorch's allocator."""
        if self.process is None or self.allocated is None or self.fragments is None:
            return None
        return self.process - self.allocated - self.fragments

    @property
    def other(self) -> int | None:
        """On the device, outside this process."""
        if self.total is None or self.process is None or self.free is None:
            return None
        return self.total - self.process - self.free

    @property
    def short(self) -> int | None:
        """What is missing beside free memory; negative where free memory would do."""
        if self.request is None or self.free is None:
            return None
        return self.request - self.free

    @property
    def missing(self) -> int | None:
        """What is missing even if every fragment could be used."""
        if self.short is None or self.fragments is None:
            return None
        return self.short - self.fragments

    @property
    def pool(self) -> int | None:
        """Reserved by PyTorch in total."""
        if self.allocated is None or self.fragments is None:
            return None
        return self.allocated + self.fragments


@dataclass(frozen=True, slots=True)
class Around:
    """What stands beside the record.

    Args:
        phase: What the engine was doing (see the column `phase`).
        budget: The engine's own stated budget, bytes.
        context: Its own "non-torch memory" line, bytes.
        growing: The request is one of a series that grows with the tokens.
    """

    phase: str | None = None
    budget: int | None = None
    context: int | None = None
    growing: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """One test that said yes; `neighbour` names the verdict on the other side of the margin."""

    id: str
    neighbour: str = ""

    @property
    def at_margin(self) -> bool:
        """Whether the printed rounding could have turned it."""
        return bool(self.neighbour)


def decide(f: Figures, around: Around, limits: MemoryLimits) -> tuple[Decision, ...]:
    """Walks the tests in their order.

    Returns:
        The verdict of the record, and fragmentation as a second one where memory outside PyTorch
        is the first but the fragments would have been enough as well.
    """

    def margin(*names: str) -> float:
        return sum(f.rounding.get(n, 0.0) for n in names) + limits.granule_bytes

    if f.allocated is not None and f.total is not None and f.allocated > f.total:
        near = f.allocated - f.total <= margin("allocated", "total")
        return (Decision("mem.oversubscription", "mem.true_exhaustion" if near else ""),)
    if f.request is None:
        return (Decision("mem.oom_unexplained"),)
    excess = -f.short if f.short is not None else None
    if (
        excess is not None
        and excess > margin("request", "free")
        and excess > limits.free_excess_ratio * f.request
    ):
        return (Decision("mem.limit_below_free"),)
    if around.phase in ("capture", "kv_sizing") and f.missing is not None and f.missing > 0:
        near = f.missing <= margin("request", "free", "fragments")
        return (Decision("mem.capture_headroom", "mem.fragmentation_contributes" if near else ""),)
    found = _outside(f, around, limits, margin)
    inside = _fragments(f, margin)
    if found:
        return (*found, *(d for d in inside if d.id == "mem.fragmentation"))
    if inside:
        return inside
    if around.growing:
        return (Decision("mem.unbudgeted_activation"),)
    near = f.missing is not None and f.missing <= margin("request", "free", "fragments")
    neighbour = "mem.fragmentation_contributes" if near else ""
    if near and f.short is not None and f.short <= 0:
        neighbour = "mem.limit_below_free"
    return (Decision("mem.true_exhaustion", neighbour),)


def _outside(f: Figures, around: Around, limits: MemoryLimits, margin: Any) -> tuple[Decision, ...]:
    """Tests 6 and 7: memory outside this process, memory outside PyTorch."""
    short = f.short or 0
    if f.other is not None and f.other > limits.other_bytes and f.other > short - (f.fragments or 0):
        edge = max(limits.other_bytes, short - (f.fragments or 0))
        near = f.other - edge <= margin("total", "process", "free")
        return (Decision("mem.other_process", "mem.true_exhaustion" if near else ""),)
    fragments = f.fragments or 0
    larger = max(f.request or 0, fragments)
    context = limits.context_bytes if around.context is None else around.context
    if f.non_torch is not None and f.non_torch - context > larger:
        near = f.non_torch - context - larger <= margin("process", "allocated", "fragments", "request")
        return (Decision("mem.non_torch", "mem.true_exhaustion" if near else ""),)
    if around.budget is not None and f.process is not None and f.request is not None:
        over = f.process - around.budget
        if over > f.request and f.fragments is not None and fragments < f.request:
            return (Decision("mem.non_torch"),)
    return ()


def _fragments(f: Figures, margin: Any) -> tuple[Decision, ...]:
    """Tests 8 and 9; test 4 has said no by now, so free memory is not enough."""
    if f.fragments is None or f.request is None:
        return ()
    if f.fragments >= f.request:
        near = f.fragments - f.request <= margin("fragments", "request")
        return (Decision("mem.fragmentation", "mem.fragmentation_contributes" if near else ""),)
    if f.free is None or f.free + f.fragments < f.request or f.fragments <= margin("fragments"):
        return ()
    if f.request - f.fragments <= margin("fragments", "request"):
        return (Decision("mem.fragmentation_contributes", "mem.fragmentation"),)
    near = f.free + f.fragments - f.request <= margin("free", "fragments", "request")
    return (Decision("mem.fragmentation_contributes", "mem.true_exhaustion" if near else ""),)
