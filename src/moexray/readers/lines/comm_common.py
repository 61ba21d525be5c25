"""What the parsers of communication lines share: restarts, joined wraps, whether a line is quoted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.readers.lines.line import Line

__all__ = ["introduced", "is_example", "last_start", "raw", "window"]

# An engine (or its worker) that starts: what stood before belongs to an earlier process.
START = lazy(
    r"in world size \d+ is assigned as|application startup complete|fired up and ready|server restarted"
    r"|started server process|starting vllm api server|vllm api server version"
    r"|initializing an? \S* ?llm engine"
    r"|server_args=|engine core restarted|restarting (?:the )?(?:engine|server|worker)",
    re.IGNORECASE,
)
EXAMPLE = lazy(
    r"(?:e\.g\.|for example|example:|if you (?:ever )?see|looks like|such as)\W*$", re.IGNORECASE
)
MOST_QUOTED = 8  # lines that an example may have
TAGS = lazy(r"(?:\[[^\[\]]{0,120}\]:?\s*)+$")  # "[rank0]:[E311 07:12:30 x.cpp:632] "


def raw(line: Line) -> str:
    """The line with its own prefix (rank tags and stamps are part of what we search)."""
    return line.full or line.text


def window(lines: Sequence[Line], at: int, more: int = 3) -> str:
    """The line and the few after it, joined: a hard wrap may have cut the message."""
    return " ".join(raw(line).strip() for line in lines[at : at + 1 + more])


def is_example(text: str, start: int) -> bool:
    """True if the message that starts there is quoted in a sentence, a comment or program source."""
    before = TAGS.sub("", text[:start]).rstrip()
    if before.lstrip().startswith(("#", "//", "*")):
        return True
    return (
        before.endswith(("'", '"', "`", "\u2018", "\u201c", "\u00ab")) or EXAMPLE.search(before) is not None
    )


def introduced(lines: Sequence[Line], at: int) -> bool:
    """True if the line stands right below a sentence that introduces an example, alone or with its like."""
    for line in reversed(lines[max(0, at - MOST_QUOTED) : at]):
        text = raw(line).strip()
        if text and not text.startswith(("[", "```", "~~~")):
            return EXAMPLE.search(text) is not None
    return False


def last_start(lines: Sequence[Line]) -> int:
    """Number of the last line that shows an engine starting; 0 if there is none."""
    return next((line.number for line in reversed(lines) if START.search(raw(line))), 0)
