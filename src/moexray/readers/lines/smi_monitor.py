"""`nvidia-smi dmon`, `pmon` and `topo -m`: columns under a header, '-' for what was not measured."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.gpu_samples import MIB, Sample, Samples, when

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]


HEADER = lazy(r"#\s*(?:(?:Date\s+)?Time\s+)?gpu\s+\S", re.IGNORECASE)
UNITS = lazy(r"#\s*(?:YYYYMMDD\s+|HH:MM:SS\s+)*Idx\b", re.IGNORECASE)
VALUE = lazy(r"-|\d+(?:\.\d+)?")
# dmon column -> (column of table gpu, factor)
COLUMNS: dict[str, tuple[str, float]] = {
    "pwr": ("power_w", 1), "gtemp": ("temp_c", 1), "temp": ("temp_c", 1), "sm": ("util_ratio", 0.01),
    "mem": ("mem_util_ratio", 0.01), "pclk": ("sm_mhz", 1), "fb": ("used_bytes", MIB),
}  # fmt: skip
# Share of the period with a power violation, %, from which the sample counts as capped; thermal: any.
POWER_VIOLATION = 10.0
TOPO = lazy(r"\s*GPU0\s+(?:GPU1|NIC0|mlx|CPU Affinity)")
LINK = lazy(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB|N/A")
END = lazy(r"GPU|NIC|mlx|hfi|bnxt")


@dataclass(slots=True)
class _State:
    samples: Samples
    columns: list[str] = field(default_factory=list)
    process: bool = False
    topology: list[str] = field(default_factory=list)
    days: int = 0
    last_s: float | None = None


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds samples of dmon, processes of pmon, links of topo."""
    state = _State(Samples("dmon"))
    for line in lines:
        text = (line.full or line.text).strip()
        if text.startswith("#"):
            if HEADER.match(text):
                state.columns = [w.lower() for w in text.lstrip("#").split()]
                state.process = "pid" in state.columns
            elif not UNITS.match(text):
                state.columns = []
        elif TOPO.match(text):
            state.topology = re.split(r"\t+|\s{2,}", text.split("CPU Affinity")[0].strip())
            if len(state.topology) == 1:
                state.topology = text.split("CPU Affinity")[0].split()
        elif state.columns and text:
            _values(text, line.number, state, out)
        elif state.topology:
            _links(text, line.number, state, out)
    state.samples.flush(out, "")


def _values(text: str, number: int, state: _State, out: Reading) -> None:
    words = text.split()
    if len(words) < len(state.columns) or (not state.process and len(words) != len(state.columns)):
        state.columns = []
        return
    values = dict(zip(state.columns, words, strict=False))
    gpu = values.get("gpu", "")
    if not gpu.isdigit():
        state.columns = []
        return
    t_s = _time(values, state)
    if state.process:
        _process(values, words, number, t_s, state, out)
        return
    sample = Sample(gpu, int(gpu), number)
    for name, word in values.items():
        if not VALUE.fullmatch(word):
            continue
        if column := COLUMNS.get(name):
            if word == "-":
                sample.note(column[0], "missing")
            else:
                sample.numbers[column[0]] = float(word) * column[1]
        elif name in ("pviol", "tviol") and word != "-":
            limit = POWER_VIOLATION if name == "pviol" else 1.0
            sample.flag(
                "sw_power_cap" if name == "pviol" else "thermal_slowdown", _active(float(word) >= limit)
            )
    if sample.numbers or sample.missing:
        state.samples.add(sample, t_s)


def _active(yes: bool) -> str:  # noqa: FBT001
    return "Active" if yes else "Not Active"


def _time(values: dict[str, str], state: _State) -> float | None:
    """Time of a row; a clock without a date goes on past midnight."""
    stamp = " ".join(values[k] for k in ("date", "time") if k in values)
    t_s = when(stamp) if stamp else None
    if t_s is None or "date" in values:
        return t_s
    t_s += state.days * 86_400
    if state.last_s is not None and t_s < state.last_s - 43_200:
        state.days += 1
        t_s += 86_400
    state.last_s = t_s
    return t_s


def _process(
    values: dict[str, str], words: list[str], number: int, t_s: float | None, state: _State, out: Reading
) -> None:
    if not values["pid"].isdigit():
        return
    used = values.get("fb", "-")
    out.add(
        "gpu_process",
        where=f"line {number}",
        t_s=t_s,
        device=int(values["gpu"]),
        key=values["gpu"],
        pid=int(values["pid"]),
        kind=values.get("type"),
        name=" ".join(words[len(state.columns) - 1 :]),
        used_bytes=int(float(used) * MIB) if VALUE.fullmatch(used) and used != "-" else None,
    )


def _links(text: str, number: int, state: _State, out: Reading) -> None:
    words = text.split()
    if not words or not END.match(words[0]):
        state.topology = []
        return
    row, links = words[0], words[1:]
    for other, link in zip(state.topology, links, strict=False):
        if not LINK.fullmatch(link):
            return
        if link != "X":
            out.add("gpu_link", where=f"line {number}", a=row, b=other, link=link)
