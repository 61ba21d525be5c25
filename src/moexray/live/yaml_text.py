"""Plain documents (mappings, sequences, texts, numbers) as YAML for people to read and edit."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["yaml_text"]

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")  # texts that need no quotes
WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))


def yaml_text(document: Any, comment: str = "") -> str:
    """The document in block style; texts that could be read as something else stand in quotes.

    Args:
        document: Of dict, list, str, int, float, bool and None.
        comment: Lines before it.
    """
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + "\n".join(_lines(document)) + "\n"


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        out = []
        for key, inner in value.items():
            name = _scalar(str(key))
            if isinstance(inner, dict | list | tuple) and inner:
                out += [f"{name}:", *(f"  {line}" for line in _lines(inner))]
            else:
                out.append(f"{name}: {_scalar(inner)}")
        return out
    if isinstance(value, list | tuple) and value:
        out = []
        for inner in value:
            first, *rest = _lines(inner)
            out += [f"- {first}", *(f"  {line}" for line in rest)]
        return out
    return [_scalar(value)]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value, ensure_ascii=False)
