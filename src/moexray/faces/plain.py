"""Text for a terminal: what an input holds is shown, never obeyed."""

from __future__ import annotations

from moexray.core.pattern import lazy

__all__ = ["visible"]

# C0 and C1 controls except tab and newline, line separators, bidirectional overrides (they make
# text read otherwise than it is stored), byte order mark, and lone surrogates (not encodable).
UNSAFE = lazy(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""The text with control and bidirectional characters as escapes (`\u001b`).

    Of JSON it keeps the meaning: such characters stand inside its strings only.
    """
    return UNSAFE.sub(lambda hit: f"\\u{ord(hit.group()):04x}", text)
