"""Regular expressions that are compiled when they are first used.

A reader declares hundreds of patterns; compiling them all takes longer than answering one line.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

__all__ = ["lazy"]

METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split", "pattern", "flags")


class _Lazy:
    """Stands for a compiled pattern; after the first use its methods are the compiled pattern's own."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._given = (text, flags)

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(name)
        text, flags = self._given
        made: Any = re.compile(text, flags)
        for method in METHODS:
            self.__dict__[method] = getattr(made, method)
        return self.__dict__[name]


def lazy(pattern: AnyStr, flags: int | re.RegexFlag = 0) -> re.Pattern[AnyStr]:
    """Like re.compile, but compiles on first use; a fault in the pattern shows then.

    Returns:
        An object with the methods of a compiled pattern (not one for re.sub(pattern, ...)).
    """
    return cast("re.Pattern[AnyStr]", _Lazy(pattern, int(flags)))
