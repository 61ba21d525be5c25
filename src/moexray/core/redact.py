"""Redaction of what we quote: tokens, credentials, host names, user names, addresses.

Numbers and message words stay, so that the evidence can still be checked.
"""

from __future__ import annotations

import re

from moexray.core.pattern import lazy

__all__ = ["redact"]

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # key=value and key: value of secrets, in environments, command lines and JSON
    (
        lazy(
            r"(?i)((?:--)?\b[A-Z0-9_]*(?:api[_-]?key|token(?!s|iz)|secret|passw(?:or)?d|credential|private[_-]?key)"
            r"[A-Z0-9_]*)(\"?\s*[=:]\s*|(?<=--api-key)\s+|(?<=--hf-token)\s+|(?<=--token)\s+)"
            r"(?!\d+(?:\.\d+)?(?:[\s,;]|$))(?:\"[^\"]{4,}\"|'[^']{4,}'|[^\s,;\"']{8,})"
        ),
        r"\1\2<redacted>",
    ),
    (lazy(r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]{8,}"), "Bearer <redacted>"),
    (lazy(r"\b(?:hf|ghp|gho|sk|pk|xox[bp]|glpat|AKIA)[_-]?[A-Za-z0-9_-]{16,}"), "<redacted>"),
    (lazy(r"(?i)(://)[^/\s:@]+:[^/\s@]+@"), r"\1<redacted>@"),
    (lazy(r"(/(?:home|Users|scratch|mnt/home)/)[^/\s\"',:;)]+"), r"\1<user>"),
    (lazy(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"), "<mail>"),
    # a shell prompt: user@host:, user@host ~
    (lazy(r"(?<![\w/.@])[a-z_][a-z0-9_.-]*@[A-Za-z][\w-]*(?=:|\s+[~/])"), "<user>@<host>"),
    (lazy(r"\b(?:\d{1,3}\.){3}\d{1,3}\b(?!\.\d)"), "<address>"),
    (lazy(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE), "<address>"),
    (
        lazy(r"\b(?:ip-\d+-\d+-\d+-\d+|[\w-]+(?:\.[\w-]+)*\.(?:internal|local|lan|corp|cluster))\b"),
        "<host>",
    ),
    (lazy(r"(?i)\b((?:hostname|nodename|user(?:name)?)\s*[=:]\s*)[\w.-]{2,}"), r"\1<redacted>"),
)


def redact(text: str) -> str:
    """Replaces secrets and names of machines and people by placeholders."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
