"""Hostile text made harmless: visible control characters, folding, script data, relative links.

HTML escaping itself is jinja2's (autoescape is on); what stands here is what escaping leaves open.
"""

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from moexray.faces.plain import visible

__all__ = ["Folded", "clean", "fold", "hash_source", "relative_href", "script_json", "short_id"]

_FOLD_AT = 480
_KEEP_AT_MOST = 20_000
ARCHIVE = re.compile(r"\.(?:zip|tar|tgz|tar\.\w+)$", re.IGNORECASE)
_ESCAPED = re.compile(r"\\(?:u[0-9a-f]{4}|[nrt])")  # of a file name that is no text: no file has this name
_SCRIPT_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in ("<", ">", "&", "'", "\u2028", "\u2029")}


@dataclass(frozen=True, slots=True)
class Folded:
    """A text that may be too long to show at once.

    Attributes:
        head: what is always shown.
        rest: what unfolds on demand, "" when the text is short.
        note: in words how much is folded or left out, "" when the text is short.
    """

    head: str
    rest: str = ""
    note: str = ""

    def __str__(self) -> str:
        """Give the part that is always shown, with an ellipsis where more follows."""
        return self.head + (" …" if self.rest else "")


def clean(value: object) -> str:
    """Give any value as text whose control and bidirectional characters are visible escapes."""
    if value is None:
        return ""
    try:
        text = value if isinstance(value, str) else str(value)
    except ValueError:  # an integer of more digits than Python is willing to print
        text = "(number too long to print)"
    text = text.replace("\r\n", "\n")
    return visible(text)


def fold(value: object, at: int = _FOLD_AT) -> Folded:
    """Fold a text longer than `at` characters; keep at most 20,000 characters of it in all."""
    text = clean(value)
    if len(text) <= at:
        return Folded(text)
    rest = text[at:_KEEP_AT_MOST]
    note = f"{len(text) - at:,} more characters"
    if len(text) > _KEEP_AT_MOST:
        note += f"; the report keeps the first {_KEEP_AT_MOST:,} of {len(text):,}"
    return Folded(text[:at], rest, note)


def short_id(value: object) -> str:
    """Give an id as the page shows and links it: cleaned, and cut after 100 characters."""
    return str(fold(value, at=100))


def script_json(data: Any) -> str:
    """Give JSON that is harmless inside a script element.

    Args:
        data: dicts, lists, cleaned strings, finite numbers, booleans and None.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_SCRIPT_ESCAPES)


def hash_source(text: str) -> str:
    """Give the Content-Security-Policy source that allows exactly this inline script or style."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def relative_href(source: str, base: str = "") -> str | None:
    """Give a link to a source that looks like a relative path, None for any other.

    Args:
        source: a file as named in the evidence.
        base: the folder the sources are relative to, as seen from the report; "" for its own.
    """
    looks_absolute = source.startswith(("/", "\\", "~")) or re.match(r"[A-Za-z][\w+.-]*:", source)
    no_file = not source or source.startswith(("-", "<")) or not re.search(r"[./]", source)
    unsafe = source != clean(source) or "\n" in source or _ESCAPED.search(source)
    if looks_absolute or no_file or len(source) > _FOLD_AT or unsafe:
        return None
    parts = source.replace("\\", "/").split("/")
    if ".." in parts or any(ARCHIVE.search(p) for p in parts[:-1]):  # a member of an archive is no file
        return None
    prefix = quote(base.rstrip("/"), safe="/.-_~", errors="surrogateescape") if base else "."
    return f"{prefix}/{quote(source, safe='/.-_~')}"
