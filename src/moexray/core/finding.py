"""What a rule says: a finding with its evidence, never a score."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SEVERITIES", "Evidence", "Finding", "Remedy", "Severity", "Subject", "pairs"]

Severity = Literal["info", "warn", "error"]
SEVERITIES: tuple[Severity, ...] = ("info", "warn", "error")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a finding is about; null is unknown or not applicable. Times are epoch or trace ns."""

    rank: int | None = None
    device: int | None = None
    stream: int | None = None
    layer: int | None = None
    expert: int | None = None
    step_from: int | None = None
    step_to: int | None = None
    t_from_ns: int | None = None
    t_to_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """A quoted line or `name=value` pairs, and where they stand.

    Args:
        source: The file, as it is named under `inputs`.
        where: "line 12", "row 4", "layers 0-5", "device 0", ...
        text: The quoted line, or pairs with the suffixes _bytes, _s, _ms, _ratio.
    """

    source: str
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change, how to take it back, what to mind. Made by core.remedies.

    Args:
        id: Of the catalogue.
        action: What to change.
        undo: How to take it back.
        caveats: What to mind.
        call: The call into `runtime` that does it inside the engine's process; empty where there is none.
        needs: What must hold before that call.
        verify: How to see whether it helped.
    """

    id: str
    action: str
    undo: str
    caveats: str = ""
    call: str = ""
    needs: str = ""
    verify: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict of VERDICTS with its number, its evidence and what to do.

    Args:
        id: Verdict id, `family.name`.
        severity: info (true and useful), warn (costs latency, memory or trust), error (failed).
        confidence: 0..1; 0.9 is arithmetic without another reading, below 0.5 a hypothesis.
        claim: One or two sentences for a tired engineer, numbers included.
        subject: What it is about.
        value: The number that decided, in base units (bytes, seconds, ratio, count).
        limit: What it was compared with, in the same unit.
        unit: "bytes", "s", "ratio", "count", "tokens" or null.
        evidence: At least one, unless `settle_with` is filled.
        implied_by: Verdict ids that caused this one; dropped where they were not found.
        remedies: What to do, best first.
        settle_with: Artefacts that would decide what stays open.
        cost: Bytes or seconds that it explains; the last key of the order of findings.
    """

    id: str
    severity: Severity
    confidence: float
    claim: str
    subject: Subject = field(default_factory=Subject)
    value: float | None = None
    limit: float | None = None
    unit: str | None = None
    evidence: tuple[Evidence, ...] = ()
    implied_by: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    settle_with: tuple[str, ...] = ()
    cost: float = 0.0

    @property
    def cannot_tell(self) -> bool:
        """A hypothesis only: the symptom is there, the deciding artefact is not."""
        return self.severity == "info" and self.confidence < 0.5

    def to_json(self) -> dict[str, Any]:
        """The finding as it stands in the diagnosis document."""
        out = asdict(self)
        del out["cost"]
        return out

    def with_causes(self, causes: tuple[str, ...]) -> Finding:
        """The same finding, implied by these ids."""
        return replace(self, implied_by=causes)


def pairs(values: Mapping[str, object]) -> str:
    """Renders `name=value` pairs for evidence; nulls are left out, floats get 6 digits (from 1e6 on 12)."""
    parts = []
    for name, value in values.items():
        if value is None:
            continue
        digits = 12 if isinstance(value, float) and abs(value) >= 1e6 else 6
        parts.append(f"{name}={value:.{digits}g}" if isinstance(value, float) else f"{name}={value}")
    return " ".join(parts)
