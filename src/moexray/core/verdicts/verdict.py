"""The shape of one entry of the verdict catalogue."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `moexray explain` prints.

    Args:
        id: `family.name`.
        means: What the verdict claims, in a sentence.
        decided: How it is decided: the arithmetic, with limits and units.
        refuted: What would refute it, or what it must not be confused with.
        do: What to do, best first.
        needs: Artefacts from which it can be decided.
        remedies: Ids of the catalogue that are calls into `runtime`.
    """

    id: str
    means: str
    decided: str
    refuted: str
    do: tuple[str, ...]
    needs: tuple[str, ...]
    remedies: tuple[str, ...] = ()
