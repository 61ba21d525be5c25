"""The catalogue of remedies: what to change, how to take it back, what to mind. Data only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moexray.core.errors import SchemaError
from moexray.core.remedies import comm, engine, gpu, memory, requests, routing, snapshot, timeline
from moexray.core.remedies.checks import CHECKS

if TYPE_CHECKING:
    from moexray.core.finding import Remedy

__all__ = ["REMEDIES", "remedy"]

_CHECK = {id: check.text for check in CHECKS for id in check.remedies}

REMEDIES: tuple[Remedy, ...] = tuple(
    entry if entry.verify else replace(entry, verify=_CHECK.get(entry.id, ""))
    for subject in (memory, snapshot, gpu, engine, routing, comm, timeline, requests)
    for entry in subject.REMEDIES
)


def remedy(id: str, **values: object) -> Remedy:
    """The remedy of that id, with `{placeholders}` of its texts filled in.

    Raises:
        SchemaError: no such remedy, or a placeholder without a value.
    """
    for entry in REMEDIES:
        if entry.id == id:
            try:
                return replace(
                    entry,
                    action=entry.action.format(**values),
                    undo=entry.undo.format(**values),
                    caveats=entry.caveats.format(**values),
                )
            except KeyError as why:
                raise SchemaError(f"remedy {id} needs a value for {why}") from why
    raise SchemaError(f"there is no remedy {id}")
