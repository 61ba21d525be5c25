"""Traces: stalls of the host, waits at collectives."""

__all__: list[str] = []
