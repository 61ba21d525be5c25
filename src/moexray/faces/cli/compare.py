"""`moexray compare`: what changed between two sets of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moexray.core.errors import UsageError
from moexray.core.json_text import json_text
from moexray.faces.cli.refuse import check_paths, refusing
from moexray.faces.cli.say import say

if TYPE_CHECKING:
    from moexray.core.run import Run

__all__ = ["command", "read_side"]

HEAD_BYTES = 4096


@click.command("compare")
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path())
@click.option("--margin", default="5%", show_default=True, metavar="TIME|SHARE",
              help='Difference that does not matter, for "no change": 5% of BEFORE, or 5ms for durations.')
@click.option("--seed", type=int, default=0, show_default=True, help="Of the bootstrap.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(before: str, after: str, margin: str, seed: int, form: str) -> None:
    """What changed from BEFORE to AFTER: folders or files of one kind on both sides.

    Latencies and benchmark results (vLLM, SGLang, guidellm, aiperf), allocator snapshots, expert counts,
    whole bundles. Each figure has the interval of its change, where the data allow one, and says "no
    change" or "cannot tell" where that is the truth. Unlike things are refused.

    Exit code: 0 compared, whatever came out (`moexray check` is the gate); 2 bad usage or nothing in
    common.
    """
    from moexray.faces.cli.ab import margin_of
    from moexray.verify.compare import compare

    with refusing():
        width = margin_of(margin)
        document = compare(read_side(before), read_side(after), width, seed).to_json()
    if form == "json":
        say(json_text({**document, "before": before, "after": after}))
        return
    from moexray.faces.cli.ab_text import outcome_table

    lines = outcome_table(document["outcomes"], ("before", "after"))
    for key, side in (("only_before", "before"), ("only_after", "after")):
        if document[key]:
            lines.append(f"only {side}: {', '.join(document[key])}")
    say("\n".join([*lines, "", *(f"note: {n}" for n in document["notes"])]))


def read_side(path: str) -> Run:
    """One side of a comparison.

    Raises:
        UsageError: it does not exist, or it is a document of moexray, which holds both sides already.
    """
    from moexray.readers.read_any import read_any

    check_paths([path])
    file = Path(path)
    if file.is_file() and (schema := _own_schema(file)):
        raise UsageError(f"{path} is a document of moexray itself ({schema})",
                         hint="give the artefacts that it was made of")  # fmt: skip
    return read_any([path])


def _own_schema(file: Path) -> str:
    with file.open("rb") as stream:
        head = stream.read(HEAD_BYTES).lstrip()
    if not head.startswith(b"{") or b'"moexray.' not in head:
        return ""
    for part in head.split(b'"'):
        if part.startswith(b"moexray.") and b"/" in part:
            return json.dumps(part.decode("utf-8", "replace")).strip('"')
    return ""
