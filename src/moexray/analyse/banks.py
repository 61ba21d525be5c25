"""Shared-memory banks: how often a warp's access is repeated, from its pattern alone.

Glossary: a *bank* serves one 4-byte word at a time, 32 banks side by side; a *pass* is one access of
the memory. Lanes that want the same word share it. Accesses of 8 and 16 bytes run by halves and
quarters of a warp (the CUDA programming guide, shared memory). A vector access needs an address that is
a multiple of its width; else it has to be written as several smaller ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Degree", "degree", "padding"]

BANKS = 32
WORD = 4  # bytes
WARP = 32
LARGEST_PAD = 32  # access widths


@dataclass(frozen=True, slots=True)
class Degree:
    """What one access of a warp costs.

    Args:
        ways: Most words that one bank serves in one group of lanes: n-way conflict; 1 is none.
        passes: Passes in total.
        ideal: Passes without any conflict or split.
        parts: Accesses that one lane's access is split into for its alignment; 1 is none.
        part_bytes: Width of each.
    """

    ways: int
    passes: int
    ideal: int
    parts: int
    part_bytes: int


def degree(stride: int, width: int, base: int = 0, lanes: int = WARP) -> Degree:
    """Passes of lane i at `base + i * stride`, `width` bytes each; all in bytes."""
    part = math.gcd(width, stride, base, 16) or width
    ways, passes = 1, 0
    for offset in range(0, width, part):
        for group in _groups(lanes, part):
            now = _ways([base + i * stride + offset for i in group], part)
            ways, passes = max(ways, now), passes + now
    ideal = max(len(_groups(lanes, width)), -(-_words(stride, width, base, lanes) // BANKS))
    return Degree(ways, passes, min(ideal, passes), width // part, part)


def _groups(lanes: int, width: int) -> list[range]:
    """Lanes that are served together: a warp for 4 bytes, a half for 8, a quarter for 16."""
    size = max(1, WARP * WORD // max(width, WORD))
    return [range(at, min(at + size, lanes)) for at in range(0, lanes, size)]


def _ways(addresses: list[int], width: int) -> int:
    banks: dict[int, set[int]] = {}
    for address in addresses:
        for word in range(address // WORD, (address + width - 1) // WORD + 1):
            banks.setdefault(word % BANKS, set()).add(word)
    return max(len(words) for words in banks.values())


def _words(stride: int, width: int, base: int, lanes: int) -> int:
    starts = (base + i * stride for i in range(lanes))
    return len({w for a in starts for w in range(a // WORD, (a + width - 1) // WORD + 1)})


def padding(stride: int, width: int, base: int = 0, lanes: int = WARP) -> int | None:
    """Fewest bytes to add to the stride, in access widths, that leave neither conflict nor split.

    Returns:
        None if the base is not aligned, or if no padding of up to 32 widths helps.
    """
    step = max(width, WORD)
    first = -stride % step
    for pad in range(first, first + LARGEST_PAD * step + 1, step):
        found = degree(stride + pad, width, base, lanes)
        if found.ways == 1 and found.parts == 1:
            return pad
    return None
