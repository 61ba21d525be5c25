"""Limits of the timeline rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TimelineLimits"]


@dataclass(frozen=True, slots=True)
class TimelineLimits:
    """Each field: what it bounds, its unit, its source."""
