"""`moexray explain`: what a verdict means, how it is decided, what refutes it, what to do."""

from __future__ import annotations

import difflib
import sys
import textwrap
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from moexray.core.remedies import REMEDIES
from moexray.core.verdicts import VERDICTS, Verdict
from moexray.faces.cli.say import columns, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.finding import Remedy

__all__ = ["command"]

WIDTH = 88
SHORT = 78  # of a text in a list


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(v.id, help=v.means) for v in VERDICTS if v.id.startswith(incomplete)]


@click.command("explain")
@click.argument("id", required=False, shell_complete=_complete)
def command(id: str | None) -> None:
    """What verdict ID means and how it is decided; without ID or with a part of one, a list.

    ID may also be that of a remedy, as the JSON documents name it, a part of one, or a word of its call
    (arena, exchange). The word `remedies` lists those that are a call inside the engine's process.
    """
    if id is None:
        _list([(v.id, v.means) for v in VERDICTS])
        return
    word = id.strip().lower()
    found = [v for v in VERDICTS if v.id == word] or [v for v in VERDICTS if word in v.id]
    if word == "remedies":
        _list([(r.id, r.call) for r in REMEDIES if r.call])
        return
    remedies = [r for r in REMEDIES if r.id == word]
    if not found:
        remedies = remedies or [r for r in REMEDIES if word in r.id or word in r.call.lower()]
    if len(remedies) == 1:
        [entry] = remedies
        say(_lines(entry.id, [("do", _open(entry.action)), *of(entry), ("for", _verdicts(entry))]))
        return
    if remedies:
        _list([(r.id, _open(r.action)) for r in remedies])
        return
    if not found:
        near = difflib.get_close_matches(word, [v.id for v in VERDICTS], 3, 0.5)
        say(f"error: there is no verdict {id}", err=True)
        hint = f"did you mean {', '.join(near)}?" if near else "moexray explain lists all verdicts"
        say(f"  try:   {hint}", err=True)
        sys.exit(2)
    if len(found) == 1:
        say(render(found[0]))
    else:
        _list([(v.id, v.means) for v in found])


def _list(lines: Sequence[tuple[str, str]]) -> None:
    width = max(len(id) for id, _ in lines)
    room = columns(width + 2 + SHORT) - width - 2
    for id, text in lines:
        say(f"{id.ljust(width)}  {textwrap.shorten(text, room, placeholder=' ...')}")


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return f"<{name}>"


def _open(text: str) -> str:
    """A text of a remedy whose values only a diagnosis knows."""
    return text.format_map(_Names())


def calls(v: Verdict) -> list[tuple[str, str]]:
    """(title, text) of the remedies that are a call inside the engine's process."""
    return [line for entry in REMEDIES if entry.id in v.remedies for line in of(entry)]


def of(entry: Remedy) -> list[tuple[str, str]]:
    """(title, text) of a remedy, without what to do."""
    return [("call", entry.call), ("first", entry.needs), ("mind", _open(entry.caveats)),
            ("verify", entry.verify), ("undo", _open(entry.undo))]  # fmt: skip


def _verdicts(entry: Remedy) -> str:
    return ", ".join(v.id for v in VERDICTS if entry.id in v.remedies)


def render(v: Verdict) -> str:
    """One verdict as text."""
    return _lines(
        v.id,
        [
            ("means", v.means),
            ("decided", v.decided),
            ("refuted", v.refuted),
            *(("do", d) for d in v.do),
            ("needs", "; ".join(v.needs)),
            *calls(v),
        ],
    )


def _lines(head: str, texts: Sequence[tuple[str, str]]) -> str:
    parts = [head]
    for title, text in texts:
        label = f"  {title + ':':<9}"
        parts += textwrap.wrap(text, columns(WIDTH), initial_indent=label,
                               subsequent_indent=" " * len(label), break_on_hyphens=False)  # fmt: skip
    return "\n".join(parts)
