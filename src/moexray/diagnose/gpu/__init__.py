"""Devices as the driver shows them."""

__all__: list[str] = []
