"""JSON that may be damaged: repaired where only one reading exists, counted, named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from moexray.core.errors import ReadError
from moexray.core.source import decode

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["load"]


def load(source: Source, out: Reading) -> Any:
    """The document of a JSON or JSON-lines file; a list of objects for JSON lines.

    Raises:
        ReadError: nothing could be repaired.
    """
    text, encoding = decode(source.data())
    if encoding != "utf-8":
        out.problem("input.encoding", f"the text is {encoding}, not plain UTF-8", values={"encoding": encoding})
    try:
        return json.loads(text)
    except ValueError:
        pass
    rows = []
    for line in text.splitlines():
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as why:
                raise ReadError(f"invalid JSON ({why})", where=source.path) from why
    return rows
