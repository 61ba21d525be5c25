"""Limits of the comm rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CommLimits"]


@dataclass(frozen=True, slots=True)
class CommLimits:
    """Each field: what it bounds, its unit, its source."""
