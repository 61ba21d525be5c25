"""Steering the fragmentation ratio: of the things a program could do next, the one that helps most.

A block freed between two others adds a hole (total free grows, the largest stays: the ratio rises);
one freed beside the largest hole lets it grow, a hole filled exactly goes (the ratio falls); a piece
taken from the largest hole makes it smaller. All effects are known beforehand from the row of blocks.
Where no single action helps, a temporary comes and goes and leaves a new hole of its size, behind which
something stays so that the hole keeps its size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Container, Iterator

    from moexray.verify.stress.heaps import Home, Row

__all__ = ["Action", "Aim", "actions", "distance", "enough", "preparation"]

TRIED = 160  # blocks to free and holes to fill that are looked at; more of them cost time only
PIECES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)  # of the largest hole
QUANTUM = 512  # bytes, the least size of a block
LEAST_PIECE = 1 << 20  # bytes; what is larger comes from the large pool of PyTorch's allocator


class Aim(NamedTuple):
    """What steering wants.

    Args:
        ratio: The fragmentation ratio, 0 to 1.
        least: Free bytes that there should be: a ratio of next to nothing means nothing.
        cached: Rows that are free as a whole stay; otherwise they will be given back.
    """

    ratio: float
    least: int
    cached: bool = True


class Action(NamedTuple):
    """What to do, and the distance from the aim that will be left.

    Args:
        off: See `distance`.
        handle: The block to free; None to ask for `size` bytes at `home`, or, if that is 0, to
            release what is cached.
        brief: The block asked for is freed at once.
        piece: Bytes of it that are asked for again and stay, so that its memory is not given back.
        seal: Bytes that are asked for right behind it and stay, so that its hole stays apart.
    """

    off: float
    handle: int | None = None
    size: int = 0
    home: Home = (0, (0, 0))
    brief: bool = False
    piece: int = 0
    seal: int = 0


class _Holes:
    """Free blocks: their bytes, and the largest when some of them go."""

    def __init__(self, rows: list[Row], aim: Aim) -> None:
        self.aim = aim
        sizes = [n for row in rows for n, h in row.spans if h is None]
        self.total = sum(sizes)
        self.top = sorted(sizes, reverse=True)[:3]

    def ratio(self) -> float:
        return 1 - self.top[0] / self.total if self.top else 0.0

    def off(self, gone: tuple[int, ...] = (), new: int = 0) -> float:
        """The distance after holes of the sizes `gone` have become one of `new` bytes (0: none)."""
        rest = list(self.top)
        for size in gone:
            if size in rest:
                rest.remove(size)
        largest = max([new, *rest[:1]])
        total = self.total - sum(gone) + new
        ratio = 1 - largest / total if total > 0 else 0.0
        return abs(ratio - self.aim.ratio) + max(1 - total / self.aim.least, 0)


def enough(rows: list[Row], aim: Aim) -> bool:
    """Whether there are free bytes enough for a ratio to mean something."""
    return _Holes(rows, aim).total >= aim.least


def distance(rows: list[Row], aim: Aim) -> float:
    """How far the ratio is from the aim, plus the share of the free bytes that is missing."""
    return _Holes(rows, aim).off()


def actions(
    rows: list[Row], released: list[Row], aim: Aim, dice: random.Random, keep: Container[int]
) -> list[Action]:
    """What could be done next, each with the distance that would be left.

    Args:
        rows: The memory.
        released: The memory once what is cached has been given back.
        aim: What is wanted.
        dice: Chooses which blocks are looked at.
        keep: Handles that must stay.
    """
    holes = _Holes(rows, aim)
    return [*_frees(rows, holes, dice, keep), *_fills(rows, holes, dice), Action(distance(released, aim))]


def preparation(rows: list[Row], aim: Aim, most: int) -> Action:
    """What to do where no action helps at once: one more hole, or a larger one.

    Args:
        rows: The memory.
        aim: What is wanted.
        most: Bytes of the largest temporary.
    """
    holes = _Holes(rows, aim)
    largest = holes.top[0] if holes.top else 0
    if holes.total < aim.least:  # such that their sum and the largest will fit the aim
        return _new_hole(max(int(aim.least * (1 - aim.ratio)), LEAST_PIECE), largest, aim)
    if holes.ratio() < aim.ratio:  # the hole that would do, at most as large as the largest
        return _new_hole(min(int(largest / (1 - aim.ratio)) - holes.total, largest), largest, aim)
    hole = int(holes.total * (1 - aim.ratio) / max(aim.ratio, 0.01))
    hole = min(hole, most) // QUANTUM * QUANTUM
    return Action(1.0, None, hole, brief=True) if aim.cached else _new_hole(hole, largest, aim)


def _new_hole(size: int, largest: int, aim: Aim) -> Action:
    """A hole of about `size` bytes; what is asked for exceeds all holes, so that none of them serves it."""
    piece = max(LEAST_PIECE, largest) + QUANTUM
    size = max(size, 2 * LEAST_PIECE) // QUANTUM * QUANTUM + piece
    return Action(1.0, None, size, brief=True, piece=piece, seal=size + QUANTUM if aim.cached else 0)


def _frees(rows: list[Row], holes: _Holes, dice: random.Random, keep: Container[int]) -> Iterator[Action]:
    places = [
        (row, at)
        for row in rows
        for at, (_, handle) in enumerate(row.spans)
        if handle is not None and handle >= 0 and handle not in keep
    ]
    for row, at in dice.sample(places, min(TRIED, len(places))):
        beside = [row.spans[i] for i in (at - 1, at + 1) if 0 <= i < len(row.spans)]
        sides = [n for n, h in beside if h is None]
        size, handle = row.spans[at]
        if len(sides) + 1 == len(row.spans) and not holes.aim.cached:
            continue  # the row would be free as a whole
        yield Action(holes.off(tuple(sides), size + sum(sides)), handle)


def _fills(rows: list[Row], holes: _Holes, dice: random.Random) -> Iterator[Action]:
    places = [(row, size) for row in rows for size, handle in row.spans if handle is None]
    chosen = dice.sample(places, min(TRIED, len(places)))
    for row, size in chosen:
        if row.smallest <= size <= row.largest:
            yield Action(holes.off((size,), 0), None, size, row.home)
    if holes.top:
        largest, second = holes.top[0], (holes.top[1] if len(holes.top) > 1 else 0)
        row = next(row for row, size in places if size == largest)
        for piece in PIECES:  # only what no other hole could serve is sure to come from the largest
            taken = int(second + (largest - second) * piece) // QUANTUM * QUANTUM + QUANTUM
            if row.smallest <= taken <= min(row.largest, largest - 2 * QUANTUM):
                yield Action(holes.off((largest,), largest - taken), None, taken, row.home)
