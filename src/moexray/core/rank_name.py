"""The rank that the name of a file, or of a folder above it, states: one set of rules for all readers."""

from __future__ import annotations

import re

from moexray.core.pattern import lazy

__all__ = ["rank_in_name", "without_rank"]

# What says by itself that a number is a rank: rank3 and global_rank-3, before local_rank3; worker3_step;
# run-TP3 if no DP follows.
SAID = (
    lazy(r"(?<![a-z])(?<!local[-_ .])(?:global_?)?rank[-_ .]?(\d{1,6})(?!\d)", re.IGNORECASE),
    lazy(r"(?<![a-z])rank[-_ .]?(\d{1,6})(?!\d)", re.IGNORECASE),
    lazy(r"(?<![a-z])worker[-_ ]?(\d{1,6})_step", re.IGNORECASE),
    lazy(r"[-_]TP[-_]?(\d{1,4})(?!\d)(?!.*[-_]DP)"),
)
# What may: a number after the name of a unit, the last one after an underscore, one that ends the name
# (recorders append it to a prefix), but no decimals of a time stamp.
MEANT = (
    lazy(r"(?<![a-z])(?:ep|gpu)[-_]?(\d{1,6})(?=\D*$)", re.IGNORECASE),
    lazy(r"(?<![a-z])(?:tp|dp|r)[-_]?(\d{1,6})(?=\D*$)", re.IGNORECASE),
    lazy(r"_-?(\d{1,6})(?=\D*$)"),
    lazy(r"(?<!\d)(?<!\d\.)(\d{1,6})$"),
)
ENDINGS = lazy(r"(?:\.(?:[a-z]{1,12}|bz2|lz4))+$", re.IGNORECASE)


def rank_in_name(path: str, *, bare: bool = False) -> int | None:
    """The rank that the file's name states, else the nearest folder that states one.

    Args:
        path: As reported, with "/" between folders.
        bare: Also believe a number of the file's name that no word calls a rank: for dumps that come
            one a rank.
    """
    *folders, name = path.split("/")
    found = _said(name) or (_meant(name) if bare else None)
    found = found or next((hit for part in reversed(folders) if (hit := _said(part))), None)
    return int(found[1]) if found else None


def without_rank(path: str) -> tuple[str, bool]:
    """The path with "*" for the rank in its file's name, and whether a word says that it is one."""
    head, slash, name = path.rpartition("/")
    sure = _said(name, SAID[:-1]) or _meant(name, MEANT[:1])
    found = sure or _meant(name)
    star = f"{name[: found.start(1)]}*{name[found.end(1) :]}" if found else name
    return head + slash + star, sure is not None


def _said(name: str, patterns: tuple[re.Pattern[str], ...] = SAID) -> re.Match[str] | None:
    """The last match of the first pattern that matches."""
    return next((hits[-1] for p in patterns if (hits := list(p.finditer(name)))), None)


def _meant(name: str, patterns: tuple[re.Pattern[str], ...] = MEANT) -> re.Match[str] | None:
    stem = name[: m.start()] if (m := ENDINGS.search(name)) else name
    return next((hit for p in patterns if (hit := p.search(stem))), None)
