"""The diagnosis as text for a terminal and as Markdown for an issue."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["as_markdown", "as_text"]

WIDTH = 96
SHOWN_EVIDENCE = 3
SHOWN_CHAINS = 5


def as_text(document: Mapping[str, Any]) -> str:
    """What a tired engineer reads in ten seconds: verdict, why, what to do, what stays open."""
    out: list[str] = []
    findings = document["findings"]
    if not document["inputs"]:
        out.append("no verdict: nothing in what was given could be used")
    elif not findings:
        out.append("verdict: none (nothing wrong was found in what was read)")
    out += _story(document)
    for i, f in enumerate(findings):
        title = "verdict" if i == 0 else "also"
        head = f"{title}: {f['id']}  [{f['severity']}, confidence {f['confidence']:.2f}]"
        out += ["", head] if i else [head]
        out += _wrap(f["claim"], "  ")
        if f["implied_by"]:
            out.append(f"  follows from: {', '.join(f['implied_by'])}")
        for e in f["evidence"][:SHOWN_EVIDENCE]:
            out += _wrap(f"{e['source']}:{e['where']}: {_short(e['text'])}", "  | ")
        if len(f["evidence"]) > SHOWN_EVIDENCE:
            out.append(f"  | ... and {len(f['evidence']) - SHOWN_EVIDENCE} more (see --format json)")
        for r in f["remedies"]:
            out += _wrap(f"do: {r['action']}", "  ")
            if r["caveats"]:
                out += _wrap(f"mind: {r['caveats']}", "      ")
        if f["settle_with"]:
            out += _wrap(f"would settle it: {'; '.join(f['settle_with'])}", "  ")
    for f in document.get("ruled_out", []):
        out += ["", f"ruled out: {f['id']}", *_wrap(f["claim"], "  ")]
    read = sum(i["rows"] for i in document["inputs"])
    out += ["", f"read: {read} records from {len(document['inputs'])} files"]
    for s in document["skipped"][:10]:
        out += _wrap(f"skipped {s['path']}: {s['reason']}", "  ")
    if len(document["skipped"]) > 10:
        out.append(f"  ... and {len(document['skipped']) - 10} more files skipped")
    return "\n".join(out)


def as_markdown(document: Mapping[str, Any]) -> str:
    """The same as Markdown, to be pasted into an issue."""
    out = [f"## moexray: `{document['verdict']}`", ""]
    for f in document["findings"]:
        out.append(f"### `{f['id']}` ({f['severity']}, confidence {f['confidence']:.2f})")
        out += ["", f["claim"], ""]
        out += [f"- `{e['source']}` {e['where']}: `{_short(e['text']).replace('`', chr(39))}`"
                for e in f["evidence"][:SHOWN_EVIDENCE]]
        out += [f"- **do**: {r['action']}" + (f" ({r['caveats']})" if r["caveats"] else "")
                for r in f["remedies"]]
        if f["settle_with"]:
            out.append(f"- **would settle it**: {'; '.join(f['settle_with'])}")
        out.append("")
    out += [f"- ruled out: `{f['id']}`: {f['claim']}" for f in document.get("ruled_out", [])]
    out += [f"- skipped `{s['path']}`: {s['reason']}" for s in document["skipped"][:10]]
    return "\n".join(out)


def _story(document: Mapping[str, Any]) -> list[str]:
    """The chains from causes to effects, one a line; nothing where no finding implies another."""
    effects: dict[str, list[str]] = {}
    for edge in document.get("chain", []):
        effects.setdefault(edge["from"], []).append(edge["to"])
    roots = [c for c in effects if not any(c in e for e in effects.values())]
    lines: list[str] = []

    def follow(path: tuple[str, ...]) -> None:
        onward = [e for e in dict.fromkeys(effects.get(path[-1], ())) if e not in path]
        if not onward and len(path) > 1:
            lines.append("chain: " + " -> ".join(path))
        for effect in onward:
            follow((*path, effect))

    for root in roots:
        follow((root,))
    return [*lines[:SHOWN_CHAINS], ""] if lines else []


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 300 else flat[:297] + "..."


def _wrap(text: str, indent: str) -> list[str]:
    lines = textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ",
                          break_long_words=False, break_on_hyphens=False)
    return lines or [indent]
