"""Limits of the gpu rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GpuLimits"]


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """Each field: what it bounds, its unit, its source."""
