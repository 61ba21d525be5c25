"""Bytes as text: the one place, since rules write sizes into claims and faces into tables."""

from __future__ import annotations

__all__ = ["human_bytes"]

STEPS = (("B", 0), ("KiB", 1), ("MiB", 1), ("GiB", 2), ("TiB", 2))
KIB = 1024.0


def human_bytes(value: float, digits: int | None = None) -> str:
    """Give a finite number of bytes in binary units: 1471026298 is "1.37 GiB".

    Args:
        value: Bytes.
        digits: Decimals of every unit above bytes, as a message that is compared prints them; one
            for KiB and MiB, two from GiB on where None.
    """
    sign, size = ("-", -value) if value < 0 else ("", value)
    scaled = float(size)
    for name, usual in STEPS:
        shown = digits if digits is not None and name != "B" else usual
        if round(scaled, shown) < KIB:
            return f"{sign}{scaled:.{shown}f} {name}"
        scaled /= KIB
    return f"{sign}{scaled:,.2f} PiB"
