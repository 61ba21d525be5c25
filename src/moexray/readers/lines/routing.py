"""Lines that give the bytes of an activation per token, which links a hot rank to its memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.core.sizes import BINARY_UNITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]

_PER_TOKEN = lazy(
    r"(\d[\d,]*(?:\.\d+)?) ?(?:([KMG])i?B|bytes|B) ?(?:/| per ) ?token|bytes[_ ]per[_ ]token[=: ]+(\d[\d,]*)",
    re.IGNORECASE,
)
_TOKENS = lazy(r"\b(?:num_)?tokens?[=: ]+(\d[\d,]*)|(\d[\d,]*) tokens\b", re.IGNORECASE)
_WORKER = lazy(r"(?:EP|rank)[ _-]?(\d+)\b", re.IGNORECASE)


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds a row of kind moe.activation (bytes_per_token, tokens, ep_rank) for each such line."""
    for line in lines:
        text = line.text
        if "token" not in text or line.quoted or not (m := _PER_TOKEN.search(text)):
            continue
        if m[3]:
            size = float(m[3].replace(",", ""))
        else:
            size = float(m[1].replace(",", "")) * BINARY_UNITS[f"{m[2]}ib".lower() if m[2] else "b"]
        fields: dict[str, Any] = {"bytes_per_token": size}
        if tokens := _TOKENS.search(text):
            fields["tokens"] = int((tokens[1] or tokens[2]).replace(",", ""))
        worker = _WORKER.search(line.worker or "") or _WORKER.search(text)
        if worker:
            fields["ep_rank"] = int(worker[1])
        out.add("log", where=f"line {line.number}", kind="moe.activation", t_s=line.t_s, rank=line.rank,
                worker=line.worker, level=line.level, line=line.number, clock=line.clock, fields=fields,
                text=line.full or line.text)  # fmt: skip
