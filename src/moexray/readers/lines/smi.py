"""The table that a plain `nvidia-smi` prints, of drivers 418 to 600, and the tool's messages.

A device takes two rows (three with a MIG row): identity, then temperature, power, memory and utilisation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.gpu_samples import Sample, Samples, fault_of, size, when

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]


HEAD = lazy(r"NVIDIA-SMI\s+(\d[\d.]*).*Driver Version:\s*(\d[\d.]*)|NVIDIA-SMI\s+(\d[\d.]*)\s")
DEVICE = lazy(
    r"\|\s*(\d+)\s+(\S.*?)\s*\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d|ERR!|N/A)"
    r"\s+\S+\s*\|"
)
NAME_END = lazy(r"\s+(?:On|Off|N/A|ERR!|TCC|WDDM|MCDM)$")
POWER = lazy(r"(\S+)\s*/\s*(\S+)\s*$")
TEMPERATURE = lazy(r"(?:^|\s)(\d+)\s?C\b")
MEMORY = lazy(r"^\s*(\S.*?)\s*/\s*(\S.*?)\s*$")
PERCENT = lazy(r"(\d+)\s?%")
MIG_ROW = lazy(r"\|\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s*\|\s*(\d+\s?MiB)\s*/\s*(\d+\s?MiB)\s*\|")
PROCESS = lazy(
    r"\|\s*(\d+)\s+(?:(N/A|\d+)\s+(N/A|\d+)\s+)?(\d+)\s+([CGM](?:\+[CGM])*)\s+(\S.*?|)\s*"
    r"(\d+\s?[KMG]iB|N/A)?\s*\|\s*$"
)
RULE = lazy(r"\+[-=+]+\+\s*$|\|[-=+]+\|\s*$")
EVENTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("lost", lazy(
        r"^\W*Unable to determine the device handle for GPU\s*(?P<bus>[0-9A-Fa-f:.]+)?.*"
        r"(?:GPU is lost|Unknown Error)", re.IGNORECASE)),
    ("lost", lazy(
        r"^\W*(?:GPU\s+(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+)\W+)?GPU is lost\.?\s*"
        r"(?:Reboot the system.*)?$")),
    ("reset_needed", lazy(r"GPU (?P<bus>[0-9A-Fa-f:.]+).*(?:requires reset|reset is required)")),
    ("no_devices", lazy(r"^\W*No devices were found\W*$", re.IGNORECASE)),
    ("no_driver", lazy(r"NVIDIA-SMI has failed because", re.IGNORECASE)),
    ("mismatch", lazy(r"Failed to initialize NVML: Driver/library version mismatch", re.IGNORECASE)),
    ("no_driver", lazy(r"^\W*Failed to initialize NVML: (?!Driver/library)", re.IGNORECASE)),
)  # fmt: skip
EVENT_HINT = lazy(
    r"lost|determine the device|no devices|nvidia-smi has|failed to init|reset", re.IGNORECASE
)
DATE_ABOVE = 3  # lines above the head that may hold the date


@dataclass(slots=True)
class _State:
    """What stands open while the table is read."""

    samples: Samples
    t_s: float | None = None
    open: Sample | None = None
    rows_seen: int = 0
    names: dict[str, str] = field(default_factory=dict)


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds samples, processes, MIG instances and messages."""
    state = _State(Samples("table"))
    for i, line in enumerate(lines):
        text = line.full or line.text
        if "|" not in text and not EVENT_HINT.search(text):
            continue
        bar = text.find("|")
        if bar >= 0:
            row = text[bar:].rstrip()
            if m := HEAD.search(row):
                _close(state)
                state.samples.driver = m[2] or m[3] or ""
                state.t_s = _date_above(lines, i)
            elif not RULE.match(row):
                _row(row, line.number, state, out)
        _event(line, text, out)
    _close(state)
    state.samples.flush(out, "")


def _date_above(lines: Sequence[Line], i: int) -> float | None:
    for line in reversed(lines[max(0, i - DATE_ABOVE) : i]):
        text = (line.full or line.text).strip()
        if text and "+--" not in text and len(text) < 80 and ":" in text:
            return when(text) if when(text) is not None else line.t_s
    return lines[i].t_s


def _row(row: str, number: int, state: _State, out: Reading) -> None:
    """One row of the table: a device's first, second or third, a MIG instance, a process."""
    if m := DEVICE.match(row):
        _close(state)
        key = m[1]
        state.open = Sample(key, int(key), number)
        state.rows_seen = 1
        state.samples.names[key] = NAME_END.sub("", m[2]).strip()
        if m[3] == "ERR!":
            state.open.note("bus_id", "error")
        return
    if state.open is not None:
        cells = row.strip("|").split("|")
        if state.rows_seen == 1 and len(cells) == 3 and ("/" in row or fault_of(cells[1])):
            _second(cells, state.open)
            state.rows_seen = 2
            return
        if state.rows_seen == 2 and len(cells) == 3:
            word = cells[2].split()[-1].rstrip("*").lower() if cells[2].split() else ""
            if word in ("enabled", "disabled"):
                state.samples.mig[state.open.key] = word == "enabled"
            state.rows_seen = 3
            return
    if m := MIG_ROW.match(row):
        _close(state)
        out.add(
            "mig",
            where=f"line {number}",
            device=int(m[1]),
            key=m[1],
            instance=int(m[2]),
            compute=int(m[3]),
            index=int(m[4]),
            used_bytes=_bytes(m[5]),
            total_bytes=_bytes(m[6]),
        )
    elif (m := PROCESS.match(row)) and "Process name" not in row:
        _close(state)
        _process(m, number, state, out)


def _process(m: re.Match[str], number: int, state: _State, out: Reading) -> None:
    out.add(
        "gpu_process",
        where=f"line {number}",
        t_s=state.t_s,
        device=int(m[1]),
        key=m[1],
        instance=int(m[2]) if m[2] and m[2].isdigit() else None,
        pid=int(m[4]),
        kind=m[5],
        name=m[6],
        used_bytes=_bytes(m[7] or ""),
    )


def _second(cells: list[str], sample: Sample) -> None:
    """Fan, temperature, state and power | memory | utilisation and mode."""
    left, memory, right = cells
    if m := TEMPERATURE.search(left):
        sample.numbers["temp_c"] = float(m[1])
    if m := POWER.search(left):
        sample.put("power_w", m[1])
        sample.put("power_limit_w", m[2])
    if "ERR!" in left:
        sample.note("sensors", "error")
    if m := MEMORY.match(memory) if not fault_of(memory) else None:
        for name, text in (("used_bytes", m[1]), ("total_bytes", m[2])):
            sample.put(name, text)
    else:
        for name in ("used_bytes", "total_bytes"):
            sample.note(name, fault_of(memory) or "missing")
    if m := PERCENT.search(right):
        sample.numbers["util_ratio"] = int(m[1]) / 100
    elif word := right.split()[:1]:
        sample.note("util_ratio", fault_of(word[0]) or "missing")


def _bytes(text: str) -> int | None:
    value = size(text)
    return None if value is None else int(value)


def _close(state: _State) -> None:
    """Gives a device whose rows are read to the batch; a first row alone is no sample."""
    if state.open is not None and state.rows_seen >= 2:
        state.samples.add(state.open, state.t_s)
    state.open, state.rows_seen = None, 0


def _event(line: Line, text: str, out: Reading) -> None:
    if not EVENT_HINT.search(text):
        return
    for kind, pattern in EVENTS:
        if m := pattern.search(line.text.strip()):
            out.add(
                "gpu_event",
                where=f"line {line.number}",
                kind=kind,
                t_s=line.t_s,
                bus=(m.groupdict().get("bus") or "").strip(":.") or None,
                text=text.strip(),
            )
            return
