"""Lines of text and what they may say: one parser a subject, listed in LINE_PARSERS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.readers.lines import comm, comm_a2a, comm_nccl, comm_ras
from moexray.readers.lines import bench, numerics
from moexray.readers.lines import engine
from moexray.readers.lines import smi, smi_host, smi_monitor, smi_query
from moexray.readers.lines import routing
from moexray.readers.lines import launch, memory_events, oom
from moexray.readers.lines.line import Line, clean_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        parse: Takes all cleaned lines of the file in order; adds rows to the Reading.
        words: Lower-case literals, one of which each line that it uses holds; of a log of many
            megabytes, lines without any parser's word are not kept. COMMON_WORDS count for all.
    """

    name: str
    parse: Callable[[Sequence[Line], Reading], None]
    words: tuple[str, ...] = ()


LINE_PARSERS: tuple[LineParser, ...] = (
    LineParser("out of memory", oom.parse, oom.WORDS),
    LineParser("memory", memory_events.parse, memory_events.WORDS),
    LineParser("launch", launch.parse, launch.WORDS),
    LineParser("engine", engine.parse, engine.WORDS),
    LineParser("collectives", comm.parse, comm.WORDS),
    LineParser("nccl status", comm_ras.parse, comm_ras.WORDS),
    LineParser("nccl debug", comm_nccl.parse, comm_nccl.WORDS),
    LineParser("all-to-all", comm_a2a.parse, comm_a2a.WORDS),
    LineParser("bench", bench.parse, bench.WORDS),
    LineParser("numerics", numerics.parse, numerics.WORDS),
    LineParser("nvidia-smi", smi.parse, smi.WORDS),
    LineParser("nvidia-smi -q", smi_query.parse, smi_query.WORDS),
    LineParser("nvidia-smi dmon", smi_monitor.parse, smi_monitor.WORDS),
    LineParser("host memory", smi_host.parse, smi_host.WORDS),
    LineParser("routing", routing.parse, routing.WORDS),
)

WORDS: tuple[str, ...] = tuple(dict.fromkeys((*COMMON_WORDS, *(w for p in LINE_PARSERS for w in p.words))))
