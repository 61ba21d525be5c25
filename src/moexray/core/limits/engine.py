"""Limits of the engine rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EngineLimits"]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Each field: what it bounds, its unit, its source."""
