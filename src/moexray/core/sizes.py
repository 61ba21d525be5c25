"""Bytes as text and what the units of texts mean: the one place, for readers, rules and faces."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BINARY_UNITS", "DECIMAL_UNITS", "human_bytes"]

# Unit in lower case -> bytes. Who writes "GB" and means GiB: nvidia-smi, the kernel, engines (SGLang
# divides by 2**30). Who means 10**9: PyTorch, which writes GiB otherwise, and benchmark tables.
BINARY_UNITS: Mapping[str, int] = {"": 1, "b": 1, "byte": 1, "bytes": 1} | {
    f"{prefix}{end}": 1 << 10 * power for power, prefix in enumerate("kmgt", 1) for end in ("ib", "b", "byte")
}
DECIMAL_UNITS: Mapping[str, int] = {**BINARY_UNITS} | {
    f"{prefix}{end}": 10 ** (3 * power) for power, prefix in enumerate("kmgt", 1) for end in ("b", "byte")
}
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
