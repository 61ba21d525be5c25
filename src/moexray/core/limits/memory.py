"""Limits of the memory rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MemoryLimits"]


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Each field: what it bounds, its unit, its source."""
