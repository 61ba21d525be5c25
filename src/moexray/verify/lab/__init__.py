"""The lab: a small trained MoE model in a real engine, faults made on purpose, and the proof of the cure."""

from __future__ import annotations

__all__: list[str] = []
