"""Loads of experts, placements and choices of the router."""

__all__: list[str] = []
