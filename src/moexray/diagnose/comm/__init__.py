"""Collectives and all-to-all: hangs, mismatches, slow links."""

__all__: list[str] = []
