"""Tables about comm."""

from __future__ import annotations

from moexray.core.schema import Table

__all__ = ["TABLES"]

TABLES: tuple[Table, ...] = ()
