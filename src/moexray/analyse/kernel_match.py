"""Kernels of an Nsight Compute report found again in a trace: by base name and order of launch.

Nsight Compute serialises and replays kernels, so its times are never set beside those of a trace; what
is taken over is which launch in the trace a measured launch is. The n-th launch of a name in the report
is the n-th of that name in the trace, as both count from the start of the same program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline import KERNEL, profiles

if TYPE_CHECKING:
    from moexray.core.run import Run

__all__ = ["InTrace", "base_name", "in_traces"]

MOST_ARGUMENTS = 64  # nesting of template arguments that is taken off
LAST = re.compile(r"([A-Za-z_$][\w$]*)\s*$")


@dataclass(frozen=True, slots=True)
class InTrace:
    """A kernel of a report in one trace.

    Args:
        source: File of the trace.
        who: Rank or file in words.
        launches: How often it runs there.
        matched: How many of the report's launches have a partner there.
        share: Part of the trace's kernel time.
        first_ns: Start of the first partner.
        stream: Stream of the first partner.
    """

    source: str
    who: str
    launches: int
    matched: int
    share: float
    first_ns: int
    stream: int


def base_name(name: str) -> str:
    """The function's own name: without return type, namespaces, template and call arguments."""
    text = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    for _ in range(MOST_ARGUMENTS):
        shorter = re.sub(r"<[^<>]*>", "", text)
        if shorter == text:
            break
        text = shorter
    found = LAST.search(text.partition("(")[0].partition("<")[0])
    return found[1] if found else name


def in_traces(run: Run, kernel: str, launches: int) -> list[InTrace]:
    """Where the kernel of a report runs in the traces beside it.

    Args:
        run: What was read.
        kernel: Its name in the report.
        launches: How many launches of it the report holds.
    """
    wanted = base_name(kernel)
    out = []
    for profile in profiles(run):
        kernels = np.flatnonzero(profile.of(KERNEL))
        used = np.unique(profile.name[kernels]).tolist()
        fits = [i for i in used if wanted in profile.names[i] and base_name(profile.names[i]) == wanted]
        rows = kernels[np.isin(profile.name[kernels], fits)]
        if len(rows):
            rows = rows[np.argsort(profile.start[rows], kind="stable")]
            length = profile.end - profile.start
            out.append(
                InTrace(
                    profile.source, profile.who, len(rows), min(launches, len(rows)),
                    float(length[rows].sum() / max(1, length[kernels].sum())), int(profile.start[rows[0]]),
                    int(profile.stream[rows[0]]),
                )
            )  # fmt: skip
    return out
