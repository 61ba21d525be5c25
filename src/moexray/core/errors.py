"""The one family of errors of moexray.

MoexrayError
├── UsageError        the caller asked for something that does not exist or cannot be (exit 2)
├── ReadError         a file cannot be read at all; says what, where and what to try
│   ├── EmptyError    the file holds nothing
│   ├── UnsafeError   the file wants to run code and was refused
│   └── LimitError    the file passes a limit of size, ratio or depth
├── ExchangeError     ranks could not exchange data; names the ranks at fault
└── SchemaError       our own code broke a table's contract (a bug of ours)
"""

from __future__ import annotations

__all__ = [
    "EmptyError",
    "ExchangeError",
    "LimitError",
    "MoexrayError",
    "ReadError",
    "SchemaError",
    "UnsafeError",
    "UsageError",
]


class MoexrayError(Exception):
    """Base of every error that moexray raises on purpose.

    Args:
        what: One line, what is wrong.
        where: File, line, offset or option.
        hint: What to try next.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.hint = what, where, hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.hint:
            lines.append(f"  try:   {self.hint}")
        return "\n".join(lines)


class UsageError(MoexrayError):
    """The caller asked for something that does not exist or cannot be."""


class ReadError(MoexrayError):
    """A file cannot be read at all."""


class EmptyError(ReadError):
    """A file holds nothing but white space."""


class UnsafeError(ReadError):
    """A file wants to run code; nothing of it was imported or called."""


class LimitError(ReadError):
    """A file passes a limit of size, compression ratio or depth."""


class ExchangeError(MoexrayError):
    """Ranks could not exchange data.

    Args:
        what: One line with rank, process id and last sequence number of the ranks at fault.
        where: The exchange, and the rank that saw it.
        hint: What to try next.
        ranks: The ranks at fault, as far as they are known.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", ranks: tuple[int, ...] = ()) -> None:
        super().__init__(what, where=where, hint=hint)
        self.ranks = ranks


class SchemaError(MoexrayError):
    """A reader broke the contract of a table: a bug of ours, never of the input."""
