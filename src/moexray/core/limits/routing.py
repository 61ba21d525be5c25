"""Limits of the routing rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RoutingLimits"]


@dataclass(frozen=True, slots=True)
class RoutingLimits:
    """Each field: what it bounds, its unit, its source."""
