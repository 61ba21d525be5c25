"""Lines of text and what they may say: one parser a subject, listed in LINE_PARSERS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.readers.lines.line import Line, clean_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moexray.core.run import Reading

__all__ = ["LINE_PARSERS", "Line", "LineParser", "clean_lines"]


@dataclass(frozen=True, slots=True)
class LineParser:
    """One subject of text.

    Args:
        name: For docs and notes.
        parse: Takes all cleaned lines of the file in order; adds rows to the Reading.
    """

    name: str
    parse: Callable[[Sequence[Line], Reading], None]


LINE_PARSERS: tuple[LineParser, ...] = ()
