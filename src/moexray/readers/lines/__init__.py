"""Lines of text and what they may say: one parser a subject, listed in LINE_PARSERS."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.readers.lines import words
from moexray.readers.lines.line import Line, clean_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading

__all__ = ["LINE_PARSERS", "WORDS", "Line", "LineParser", "clean_lines"]

# Kept of every large log, whatever the parsers declare.
COMMON_WORDS = (
    "out of memory", "outofmemory", "oom", "allocation failed", "error", "fatal", "killed process",
    "watchdog", "timed out", "timeout", "worknccl", "nccl warn", "nccl version", "init complete",
    "xid", "startup complete", "ready to roll", "in world size", "memory", "backend",
)


@dataclass(frozen=True, slots=True)
class LineParser:
    """One subject of text.

    Args:
        name: For docs and notes.
        module: Its module; `parse(lines, out)` there takes all cleaned lines of the file in order and
            adds rows to the Reading. It is imported only for a text that holds one of the words.
        words: Lower-case literals, one of which each line that it uses holds; of a log of many
            megabytes, lines without any parser's word are not kept. COMMON_WORDS count for all.
    """

    name: str
    module: str
    words: tuple[str, ...]

    def parse(self, lines: Sequence[Line], out: Reading) -> None:
        """Runs the parser."""
        importlib.import_module(self.module).parse(lines, out)


LINE_PARSERS: tuple[LineParser, ...] = (
    LineParser("out of memory", "moexray.readers.lines.oom", words.OOM),
    LineParser("memory", "moexray.readers.lines.memory_events", words.MEMORY_EVENTS),
    LineParser("launch", "moexray.readers.lines.launch", words.LAUNCH),
    LineParser("engine", "moexray.readers.lines.engine", words.ENGINE),
    LineParser("collectives", "moexray.readers.lines.comm", words.COMM),
    LineParser("nccl status", "moexray.readers.lines.comm_ras", words.COMM_RAS),
    LineParser("nccl debug", "moexray.readers.lines.comm_nccl", words.COMM_NCCL),
    LineParser("all-to-all", "moexray.readers.lines.comm_a2a", words.COMM_A2A),
    LineParser("bench", "moexray.readers.lines.bench", words.BENCH),
    LineParser("accesses", "moexray.readers.lines.accesses", words.ACCESSES),
    LineParser("ncu", "moexray.readers.lines.ncu", words.NCU),
    LineParser("numerics", "moexray.readers.lines.numerics", words.NUMERICS),
    LineParser("nvidia-smi", "moexray.readers.lines.smi", words.SMI),
    LineParser("nvidia-smi -q", "moexray.readers.lines.smi_query", words.SMI_QUERY),
    LineParser("nvidia-smi dmon", "moexray.readers.lines.smi_monitor", words.SMI_MONITOR),
    LineParser("host memory", "moexray.readers.lines.smi_host", words.SMI_HOST),
    LineParser("routing", "moexray.readers.lines.routing", words.ROUTING),
)

WORDS: tuple[str, ...] = tuple(dict.fromkeys((*COMMON_WORDS, *(w for p in LINE_PARSERS for w in p.words))))
