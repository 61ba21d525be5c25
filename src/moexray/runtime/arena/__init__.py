"""Memory that is taken once: an arena, slots for expert weights, pages for what grows, see each file."""

from __future__ import annotations

from moexray.runtime.arena.blocks import Arena, ArenaFigures, Block
from moexray.runtime.arena.experts import ExpertFigures, ExpertSlots
from moexray.runtime.arena.memory import Memory
from moexray.runtime.arena.pages import Pages

__all__ = ["Arena", "ArenaFigures", "Block", "ExpertFigures", "ExpertSlots", "Memory", "Pages"]
