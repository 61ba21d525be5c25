"""Limits of the snapshot rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SnapshotLimits"]


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """Each field: what it bounds, its unit, its source."""
