"""Which lines of a very large log are kept: those that hold a word of some parser, each word up to a quota.

Most lines of a log differ in their digits only. The *shape* of a line is its text in lower case with
each digit as 0; words are looked for once per shape, which is many times faster than once per line.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Chooser"]

SHAPE = bytes(
    ord("0") if chr(i) in "0123456789" else ord(chr(i).lower()) if i < 128 else i for i in range(256)
)  # for bytes.translate
KNOWN_BYTES = 8 << 20  # shapes remembered, in bytes; beyond it they are forgotten and learnt anew


class Chooser:
    """Chooses lines block by block; memory stays bounded however many shapes there are.

    Args:
        words: Lower-case literals.
        quota: Lines kept per word; a line stays while one of its words has some left.
        after: Lines kept behind each hit (hard wraps, tracebacks).
    """

    def __init__(self, words: Iterable[str], quota: int, after: int) -> None:
        self._quota = quota
        self._after = after
        self._names = {w.encode().translate(SHAPE): w for w in words}
        self._known: dict[bytes, tuple[bytes, ...]] = {}
        self._bytes = 0
        self._kept: Counter[bytes] = Counter()

    @cached_property
    def _words(self) -> list[bytes]:
        """Words that hold no other word: a small text never asks for them."""
        return [w for w in self._names if not any(v != w and v in w for v in self._names)]

    @property
    def full(self) -> list[str]:
        """Words whose quota is used up."""
        return [self._names[w] for w, n in self._kept.items() if n >= self._quota]

    def choose(self, block: bytes) -> list[tuple[int, bytes]]:
        """(index, line) of each line of the block that is kept, in order."""
        shapes = block.translate(SHAPE).removesuffix(b"\n").split(b"\n")
        self._learn(set(shapes).difference(self._known))
        known, kept, quota = self._known, self._kept, self._quota
        chosen: set[int] = set()
        for i, shape in enumerate(shapes):
            words = known[shape]
            if words and any(kept[w] < quota for w in words):
                for word in words:
                    kept[word] += 1
                chosen.update(range(i, min(i + self._after + 1, len(shapes))))
        lines = block.split(b"\n") if chosen else []
        if self._bytes > KNOWN_BYTES:
            known.clear()
            self._bytes = 0
        return [(i, lines[i]) for i in sorted(chosen)]

    def _learn(self, shapes: set[bytes]) -> None:
        """Looks for the words in shapes not seen before, all shapes at once."""
        text = b"\n".join(shapes)
        found: dict[int, list[bytes]] = {}
        for word in self._words:
            at = text.find(word)
            while at >= 0:
                found.setdefault(text.rfind(b"\n", 0, at) + 1, []).append(word)
                end = text.find(b"\n", at)
                at = text.find(word, end) if end >= 0 else -1
        start = 0
        for shape in shapes:
            self._known[shape] = tuple(found.get(start, ()))
            start += len(shape) + 1
        self._bytes += len(text)
