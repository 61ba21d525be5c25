"""Words that the snapshot rules share: subjects, what the launch says on the allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.algorithms import conf
from moexray.core.finding import Subject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.analyse.snapshot import Shot
    from moexray.core.run import Run

__all__ = ["by_subject", "clash_of_expandable", "expandable_is_on", "place", "subject"]

OFF = ("", "0", "false", "no", "none")


def subject(shot: Shot) -> Subject:
    """Rank and device of a snapshot."""
    return Subject(rank=shot.rank, device=shot.device)


def place(shot: Shot) -> str:
    """Rank and device in words."""
    return f"device {shot.device}" if shot.rank is None else f"rank {shot.rank}, device {shot.device}"


def by_subject(shots: Iterable[Shot]) -> list[list[Shot]]:
    """Snapshots of the same rank and device together, in their order."""
    groups: dict[tuple[int | None, int], list[Shot]] = {}
    for shot in shots:
        groups.setdefault((shot.rank, shot.device), []).append(shot)
    return list(groups.values())


def expandable_is_on(run: Run, shot: Shot) -> bool:
    """The snapshot's own settings or the launch already ask for expandable segments."""
    settings = shot.info["settings"] or {}
    if settings.get("expandable_segments") is True or bool(shot.segments["is_expandable"].any()):
        return True
    words = [conf.recorded(settings)]
    words += [str(row["value"]) for row in run.rows("launch") if row["key"] in conf.VARIABLES]
    return any("expandable_segments:true" in word.replace(" ", "").lower() for word in words)


def clash_of_expandable(run: Run) -> str:
    """The feature in use that expandable segments clash with, in words; "" for none known."""
    said = {str(row["key"]).lower(): str(row["value"]) for row in run.rows("launch")}
    if said.get("enable_sleep_mode", "false").lower() not in OFF:
        return "sleep mode"
    if said.get("disable_custom_all_reduce", "false").lower() not in OFF:
        return ""
    width = said.get("tensor_parallel_size") or said.get("tp_size") or said.get("tp") or ""
    if width.isdigit() and int(width) > 1:
        return f"custom all-reduce (tensor parallel size {width})"
    return ""
