"""Names of files as they are reported; what opens a file is its path."""

__all__ = ["printable"]

_LINE_ENDS = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


def printable(name: str) -> str:
    """A file name that every format holds in one line: what is no UTF-8 in it, and line ends, as escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8").translate(_LINE_ENDS)
