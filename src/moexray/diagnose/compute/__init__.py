"""Kernels and what they return: benchmark tables, bank conflicts, precision."""

__all__: list[str] = []
