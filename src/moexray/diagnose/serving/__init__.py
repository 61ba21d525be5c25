"""Requests: queues, preemption, progress, from scrapes and logs."""

__all__: list[str] = []
