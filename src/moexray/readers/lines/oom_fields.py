"""The numbers of an out-of-memory message, whatever the wording, read from squeezed text.

Sources of the wordings: torch 1.0-1.3 ("cached"), 1.4-2.0 ("reserved in total by PyTorch"), 2.1 and
later ("has a total capacity of"), 2.13 ("memory allocation failed with OOM"), the cudaMallocAsync
backend ("would exceed allowed memory"); builds for CUDA, HIP and XPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.core.sizes import DECIMAL_UNITS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ANCHOR", "Fields", "read_fields"]

IMPOSSIBLE = 1 << 60  # torch prints "17179869184.00 GiB" where the driver knows no value
GAP = 260  # squeezed characters between two clauses of one message
WINDOW = 2400

_N = r"(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,24}(?:[.,]\d{1,6})?)"
_S = _N + r"(bytes?|[KMGT]i?B|B)"
_RAW = r"(\d{1,20})()"

ANCHOR = lazy(
    r"(?P<plain>(?:CUDA|HIP|ROCm|XPU|NPU|MUSA|MLU)outofmemory)"
    r"|(?P<warning>memoryallocationfailedwithOOMondevice)"
    r"|(?P<pool>Allocationondevice\d*wouldexceedallowedmemory)"
    r"|(?P<tail>Triedtoallocate)(?=\d)",
    re.IGNORECASE,
)

_CLAUSES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, lazy(pattern, re.IGNORECASE))
    for name, pattern in (
        ("request", f"(?:Tried|trying)toallocate{_S}"),
        ("request", f"Requested:{_S}"),
        ("total", f"totalcapaci?tyof{_S}"),
        ("total", f"{_S}totalcapaci?ty"),
        ("total", f"total:{_RAW}"),
        ("total", f"Devicelimit:{_S}"),
        ("free", f"ofwhich{_S}(?:is)?free"),
        ("free", f"{_S}free(?=[;).])"),
        ("free", f"free:{_RAW}"),
        ("free", rf"Free\(accordingtoCUDA\):{_S}"),
        ("limit", f"{_S}(?:is)?allowed"),
        ("limit", rf"PyTorchlimit\([^)]*\):{_S}"),
        ("process", f"thisprocesshas{_S}"),
        ("allocated", f"{_S}(?:isallocated(?!in)|alreadyallocated)"),
        ("allocated", f"Currentlyallocated:{_S}"),
        ("private", f"with{_S}allocatedinprivate"),
        ("fragments", f"{_S}isreserved"),
        ("reserved", f"{_S}reservedintotal"),
        ("cached", f"{_S}cached"),
    )
)
_WARNING = lazy(
    r"memoryallocationfailedwithOOMondevice(\d{1,4})whiletryingtoallocate(\d{1,18})bytes"
    r"\(free:(\d{1,18}),total:(\d{1,18})\)"
)
_OTHERS = lazy(rf"Process(\d+)has{_S}(?:memory)?inuse", re.IGNORECASE)
_DEVICE = lazy(r"(?:GPU|XPU|NPU|device)(\d{1,4})(?=has|;|while|would)", re.IGNORECASE)


@dataclass(slots=True)
class Fields:
    """What one message says, in bytes; None where it does not say it."""

    values: dict[str, int] = field(default_factory=dict)
    rounding: dict[str, float] = field(default_factory=dict)
    others: list[dict[str, int]] = field(default_factory=list)
    device: int | None = None
    end: int = 0

    @property
    def is_record(self) -> bool:
        """The request and at least one of total, free, allocated are numbers."""
        return "request" in self.values and bool({"total", "free", "allocated"} & set(self.values))

    def columns(self) -> dict[str, Any]:
        """The columns of the table `oom` that hold these numbers."""
        return {
            "device": self.device,
            **{f"{k}_bytes": v for k, v in self.values.items()},
            "others": self.others or None,
            "rounding": self.rounding,
        }


def read_fields(text: str, start: int) -> Fields:
    """Reads the clauses that follow an anchor.

    Args:
        text: Squeezed text.
        start: Where the anchor begins.

    Returns:
        The numbers found; `end` is where the last clause ends in `text`.
    """
    if exact := _WARNING.match(text, start):
        return _raw(exact)
    following = next((m.start() for m in ANCHOR.finditer(text, start + 30) if m.lastgroup != "tail"), None)
    window = text[start : min(following or len(text), start + WINDOW)]
    out = Fields(end=start + len("CUDAoutofmemory"))
    last = 0
    for name, begin, end, groups in sorted(_matches(window), key=lambda x: x[1]):
        if begin - last > GAP:
            break
        if name == "device":
            out.device = int(groups[0]) if out.device is None else out.device
        elif name == "other":
            if (size := _size(groups[1], groups[2])) is not None:
                out.others.append({"pid": int(groups[0]), "bytes": size[0]})
                out.rounding.setdefault("others", size[1])
        elif name not in out.values:
            if (size := _size(groups[0], groups[1])) is not None:
                out.values[name], out.rounding[name] = size
        else:
            continue
        last = max(last, end)
    out.end = start + max(last, 1)
    _derive(out)
    return out


def _raw(m: re.Match[str]) -> Fields:
    """A warning in raw bytes: nothing was rounded."""
    values = {name: int(m[i]) for i, name in enumerate(("request", "free", "total"), 2)}
    return Fields(values, dict.fromkeys(values, 0.0), device=int(m[1]), end=m.end())


def _matches(window: str) -> Iterator[tuple[str, int, int, tuple[str, ...]]]:
    for name, pattern in _CLAUSES:
        if m := pattern.search(window):
            yield name, m.start(), m.end(), m.groups()
    if m := _DEVICE.search(window):
        yield "device", m.start(), m.end(), m.groups()
    for m in _OTHERS.finditer(window):
        yield "other", m.start(), m.end(), m.groups()


def _size(number: str, unit: str) -> tuple[int, float] | None:
    """(bytes, half of the last printed digit); None for values that no device can have."""
    digits = number.replace(",", "") if "." in number or re.fullmatch(r"\d{1,3}(,\d{3})+", number) else number
    digits = digits.replace(",", ".")
    scale = DECIMAL_UNITS[unit.lower()]
    value = float(digits) * scale if "." in digits else int(digits) * scale
    if value >= IMPOSSIBLE:
        return None
    decimals = len(digits.partition(".")[2])
    return round(value), 0.0 if scale == 1 else 0.5 * scale / 10**decimals


def _derive(out: Fields) -> None:
    """Gives the clauses of all wordings the same meaning."""
    v, r = out.values, out.rounding
    if "cached" in v:
        # up to torch 1.3 this figure leaves out what is allocated, unless the sum cannot fit
        cached, allocated = v.pop("cached"), v.get("allocated", 0)
        width = r.pop("cached")
        whole = v.get("total", IMPOSSIBLE)
        inclusive = cached >= allocated > 0 and allocated + cached + v.get("free", 0) > whole + width
        name = "reserved" if inclusive else "fragments"
        v.setdefault(name, cached)
        r.setdefault(name, width)
    if "reserved" in v and "allocated" in v and "fragments" not in v and v["reserved"] >= v["allocated"]:
        v["fragments"] = v["reserved"] - v["allocated"]
        r["fragments"] = r["reserved"] + r["allocated"]
    elif "reserved" not in v and "fragments" in v and "allocated" in v:
        v["reserved"] = v["allocated"] + v["fragments"]
        r["reserved"] = r["fragments"] + r["allocated"]
    if "process" not in v and out.others:
        _own_process(out)


def _own_process(out: Fields) -> None:
    """Without a "this process" clause one of the processes named is this one.

    Alone it is this one; of several it is the only one that can hold what PyTorch reserved.
    """
    v, r = out.values, out.rounding
    held = v.get("reserved", v.get("allocated", 0))
    slack = r.get("reserved", r.get("allocated", 0.0)) + r["others"]
    able = [p for p in out.others if p["bytes"] + slack >= held]
    own = out.others[0] if len(out.others) == 1 else able[0] if len(able) == 1 and held else None
    if own is not None:
        v["process"], r["process"] = own["bytes"], r["others"]
        out.others = [p for p in out.others if p is not own]
