"""Sizes on the command line: 80GiB, 1.5g, 512, all in bytes inside."""

from __future__ import annotations

import re
from typing import Any

import click

from moexray.core.sizes import BINARY_UNITS

__all__ = ["SizeOption"]

LARGEST = 1 << 50  # no device has a pebibyte


class SizeOption(click.ParamType[int]):
    """A size of at least one byte; units are binary, KB reads as KiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Gives the bytes; fails with what to write instead."""
        found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]?)i?b?\s*", str(value).lower(), re.ASCII)
        size = int(float(found[1]) * BINARY_UNITS[f"{found[2]}ib" if found[2] else "b"]) if found else 0
        if not 0 < size <= LARGEST:
            self.fail(f"{value!r} is no size; write 80GiB, 81559MiB or bytes", param, ctx)
        return size
