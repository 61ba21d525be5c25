"""What a host may hand to a remedy is checked here, whatever its type hints say."""

from __future__ import annotations

__all__ = ["is_whole"]


def is_whole(*values: object, least: int = 1) -> bool:
    """Whether all are whole numbers (of Python) of at least `least`: no float, no NaN, no text, no None."""
    return all(isinstance(value, int) and value >= least for value in values)
