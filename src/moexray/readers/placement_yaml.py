"""Placement files of TensorRT-LLM: YAML with `initial_global_assignments`, read without a YAML library.

Only that mapping (layer: [logical expert per slot], written in blocks or in brackets) and whole
numbers beside it are taken; tags, anchors and every other value are passed over, nothing is built
from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.errors import ReadError
from moexray.core.pattern import lazy
from moexray.core.source import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["read", "sniff"]

_HEAD = lazy(r"(?m)^[ ]*[\"']?initial_global_assignments[\"']?[ ]*:")
_KEY = lazy(r"^( *)[\"']?([A-Za-z_][\w.-]*)[\"']?\s*:(?=\s|$)(.*)$")
_PART = lazy(r"[\"']?\d+[\"']?\s*:(?:\s|\[|$)|- |-?\d+\b|[\[\]{},]|---|\.\.\.|%YAML|#")
_WHOLE = lazy(r"^\s*[\"']?(\d{1,9})[\"']?\s*$")
_TOKEN = lazy(r"[\"']?\b(?:layers?_?)?(\d{1,6})[\"']?\s*:|(?<![\w.])(-?\d{1,6})(?![\w.])")


def sniff(head: bytes) -> bool:
    """The key at the start of a line, and nothing but keys, items and numbers around it (no prose)."""
    if b"initial_global_assignments" not in head:
        return False
    text = decode(head)[0]
    if not _HEAD.search(text):
        return False
    lines = [line for line in text.splitlines() if line.strip()]
    if len(head) >= 1 << 16:
        lines = lines[:-1]
    return all(_KEY.match(line) or _PART.match(line.strip()) for line in lines)


def read(source: Source, out: Reading) -> None:
    """Takes the assignments as a placement.

    Raises:
        ReadError: the mapping is empty or holds no lists of expert ids.
    """
    import numpy as np

    from moexray.readers.shapes.routing_arrays import take_arrays
    from moexray.readers.shapes.routing_facts import Facts
    from moexray.readers.shapes.routing_values import numbers_of

    lines = [_without_comment(line) for line in decode(source.data())[0].splitlines()]
    numbers, block = _split(lines)
    layers = _assignments(" ".join(block))
    widths = [len(slots) for slots in layers.values()]
    if not widths or max(widths) < 2:
        hint = "initial_global_assignments: {layer: [expert per slot]} is known"
        raise ReadError("a placement without a list of experts", where=source.path, hint=hint)
    width = max(set(widths), key=widths.count)
    for layer, slots in layers.items():
        if len(slots) != width:
            text = f"layer {layer} has {len(slots)} slots where other layers have {width}; it is not used"
            out.problem("input.dirty_table", text, where=f"layer {layer}", lost=1, values={"layer": layer})
    kept = {y: slots for y, slots in layers.items() if len(slots) == width}
    facts = Facts(numbers_of(numbers), layers=np.array(list(kept)), layout="TensorRT-LLM placement")
    take_arrays({"initial_global_assignments": np.array(list(kept.values()))}, facts, source, out)


def _without_comment(line: str) -> str:
    at = line.find("#")
    return line if at < 0 or (at and not line[at - 1].isspace()) else line[:at]


def _split(lines: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """(whole numbers by key, lines of the mapping): it ends at the next key that is not deeper."""
    numbers: dict[str, int] = {}
    block: list[str] = []
    inside: int | None = None
    depth = 0
    for line in lines:
        key = _KEY.match(line)
        if inside is not None and depth == 0 and key and len(key[1]) <= inside and line.strip():
            inside = None
        if inside is not None:
            block.append(line)
            depth += line.count("[") + line.count("{") - line.count("]") - line.count("}")
        elif key and key[2] == "initial_global_assignments":
            inside = len(key[1])
            block.append(key[3])
            depth = key[3].count("[") + key[3].count("{") - key[3].count("]") - key[3].count("}")
        elif key and (whole := _WHOLE.match(key[3])):
            numbers.setdefault(key[2], int(whole[1]))
    return numbers, block


def _assignments(text: str) -> dict[int, list[int]]:
    """Numbers before a colon are layers, all others the slots of the layer before."""
    found: dict[int, list[int]] = {}
    slots: list[int] | None = None
    for m in _TOKEN.finditer(text):
        if m[1] is not None:
            slots = found.setdefault(int(m[1]), [])
        elif slots is not None:
            slots.append(int(m[2]))
    return found
