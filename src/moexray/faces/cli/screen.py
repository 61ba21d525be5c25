"""The diagnosis as text for a terminal and as Markdown for an issue."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

from moexray.faces.chains import paths
from moexray.faces.numbers import counted, human_fact

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["WIDTH", "as_markdown", "as_text"]

WIDTH = 96
SHOWN_EVIDENCE = 2
SHOWN_REMEDIES = 2
SHOWN_CHAINS = 5
SHOWN_PAIRS = 6
SHOWN_RULED_OUT = 4
SHOWN_SKIPPED = 10
QUOTED = 300  # characters of a quoted line
BRIEF = 3 * WIDTH - 10  # characters of a claim that was told for another rank or file, or ruled out

PAIRS = re.compile(r"\w+=\S+(?: \w+=\S+)*")
SENTENCE_END = re.compile(r"[^\W\d_]{2}\)?\.(?= [A-Z])|\d\)?\.(?= [A-Z\d])")
SIZED = re.compile(r"(\w+)_(bytes|ratio|s|ms|us|ns)=(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
LONG = re.compile(r"^-?\d{1,3}\.\d{3,}$")

NOTHING = (
    "no verdict: nothing in what was given could be used",
    "  try: a server log from its start, the whole out-of-memory message, nvidia-smi output, a",
    "    /metrics scrape, a snapshot, a trace, expert counts; docs/capture.md says how to take each",
)
NONE = (
    "verdict: none (nothing wrong was found in what was read)",
    "  still in trouble? other artefacts decide other questions: docs/capture.md",
)


class _Paragraph(NamedTuple):
    """Text that is broken into lines at the end, when the width is known."""

    head: str
    text: str
    indent: str


_Part = str | _Paragraph


def as_text(document: Mapping[str, Any], *, whole: bool = False, width: int = WIDTH) -> str:
    """What a tired engineer reads in ten seconds: verdict, what to do, proof; then the rest, short.

    Args:
        document: The diagnosis, `moexray.diagnosis/1`.
        whole: All evidence, remedies (with their undo) and skipped files instead of the first ones.
        width: Characters of a line, where its words allow that.
    """
    findings = document["findings"]
    out: list[_Part] = []
    if findings:
        out += _verdict(findings[0], _chains(document), whole=whole)
    else:
        out += NONE if document["inputs"] else NOTHING
    told = {findings[0]["id"]} if findings else set()
    for f in findings[1:]:
        out += ["", *_also(f, first=f["id"] not in told, whole=whole)]
        told.add(f["id"])
    out += _ruled_out(document.get("ruled_out", []), whole=whole)
    out += _seen(document, whole=whole)
    out += ["", *_inputs(document, whole=whole)]
    lines = [line for part in out for line in _lines(part, width)]
    if not whole and as_text(document, whole=True, width=width).count("\n") > len(lines) - 1:
        hint = "--all shows all evidence and remedies, --report FILE draws them"
        lines += _lines(_Paragraph("shortened: ", hint, "  "), width)
    return "\n".join(lines)


def as_markdown(document: Mapping[str, Any], *, whole: bool = False) -> str:
    """The same as Markdown, to be pasted into an issue; see as_text for the arguments."""
    out = [f"## moexray: `{document['verdict']}`", ""]
    out += ["- chain: " + " -> ".join(f"`{i}`" for i in c) for c in _chains(document)[:SHOWN_CHAINS]]
    out += [""] if len(out) > 2 else []
    for f in document["findings"]:
        out.append(f"### `{f['id']}` ({f['severity']}, confidence {f['confidence']:.2f})")
        out += ["", _md(f["claim"]), ""]
        shown = f["evidence"] if whole else f["evidence"][:SHOWN_EVIDENCE]
        out += [f"- {_code(e['source'])} {_md(e['where'])}: {_code(_short(e['text']))}" for e in shown]
        out += [f"- **do**: {_md(r['action'])}" + (f" ({_md(r['caveats'])})" if r["caveats"] else "")
                for r in f["remedies"]]
        if f["settle_with"]:
            out.append(f"- **would settle it**: {_md('; '.join(f['settle_with']))}")
        out.append("")
    out += [f"- ruled out: `{f['id']}`: {_md(f['claim'])}" for f in document.get("ruled_out", [])]
    for entry in document.get("seen", []):
        out.append(f"- seen, not judged: {_md(entry['what'])}: {_md(entry['text'])}")
    skipped = document["skipped"] if whole else document["skipped"][:SHOWN_SKIPPED]
    out += [f"- skipped {_code(s['path'])}: {_md(s['reason'])}" for s in skipped]
    return "\n".join(out)


def _md(text: str) -> str:
    """Words from inputs as Markdown: one line, no HTML, links or mentions; back-ticked commands stay."""
    text = " ".join(text.split())
    text = text.replace("`", "'") if text.count("`") % 2 else text
    return "`".join(
        part if i % 2 else re.sub(r"([\\<\[\]@*_|])", r"\\\1", part) for i, part in enumerate(text.split("`"))
    )


def _code(text: str) -> str:
    return f"`{' '.join(text.split()).replace('`', chr(39))}`"


def _verdict(f: Mapping[str, Any], chains: list[tuple[str, ...]], *, whole: bool) -> list[_Part]:
    """The first finding: its whole claim, what it led to, the best remedies, the proof."""
    out: list[_Part] = [_title("verdict", f), *_wrap(_place(f) + f["claim"], "  "), *_causes(f)]
    out += [line for c in chains[:SHOWN_CHAINS] for line in _wrap(" -> ".join(c), "chain: ")]
    shown = f["remedies"] if whole else f["remedies"][:SHOWN_REMEDIES]
    for r in shown:
        out += _remedy(r, whole=whole)
    if left := len(f["remedies"]) - len(shown):
        out.append(f"  ... {counted(left, 'further remedy', 'further remedies')}: --all")
    for e in f["evidence"] if whole else f["evidence"][:SHOWN_EVIDENCE]:
        out += _proof(e, whole=whole)
    return out + _settle(f)


def _also(f: Mapping[str, Any], *, first: bool, whole: bool) -> list[_Part]:
    """A further finding: the begin of its claim, and, where its id was not told before, the best remedy.

    One without a cause among the findings stands alone, so its proof and what would settle it are told, too.
    """
    if whole:
        return [_title("also", f), *_verdict(f, [], whole=True)[1:]]
    out: list[_Part] = [_title("also", f), *_wrap(_place(f) + _brief(f["claim"]), "  "), *_causes(f)]
    if first and not f["implied_by"]:
        out += [line for r in f["remedies"][:1] for line in _remedy(r, whole=False)]
        out += [line for e in f["evidence"][:1] for line in _proof(e, whole=False)]
        out += _settle(f)
    elif first:
        out += [line for r in f["remedies"][:1] for line in _wrap(r["action"], "  do: ")]
    return out


def _title(word: str, f: Mapping[str, Any]) -> str:
    return f"{word}: {f['id']}  [{f['severity']}, confidence {f['confidence']:.2f}]"


def _causes(f: Mapping[str, Any]) -> list[_Part]:
    return [f"  follows from: {', '.join(f['implied_by'])}"] if f["implied_by"] else []


def _remedy(r: Mapping[str, Any], *, whole: bool) -> list[_Part]:
    out: list[_Part] = _wrap(r["action"], "  do: ")
    for name in ("caveats", "call", "verify", "undo") if whole else ("caveats", "call"):
        if r.get(name):
            out += _wrap(r[name], f"      {'mind' if name == 'caveats' else name}: ")
    return out


def _proof(e: Mapping[str, Any], *, whole: bool) -> list[_Part]:
    text = _short(e["text"]) if whole else _readable(e["text"])
    return _wrap(f"{_source(e)}: {text}", "  | ", "  |   ")


def _settle(f: Mapping[str, Any]) -> list[_Part]:
    return _wrap("; ".join(f["settle_with"]), "  would settle it: ", "    ") if f["settle_with"] else []


def _place(f: Mapping[str, Any]) -> str:
    """Rank and device, where the claim does not name its rank."""
    rank = f["subject"].get("rank")
    return "" if rank is None or re.search(rf"\brank {rank}\b", f["claim"]) else f"(rank {rank}) "


def _source(e: Mapping[str, Any]) -> str:
    line = re.fullmatch(r"line (\d+)", e["where"])
    return f"{e['source']}:{line[1]}" if line else ", ".join(p for p in (e["source"], e["where"]) if p)


def _ruled_out(findings: list[Any], *, whole: bool) -> list[_Part]:
    """One entry each; the short form tells each id once."""
    ids = [f["id"] for f in findings]
    shown = findings if whole else [f for i, f in enumerate(findings) if f["id"] not in ids[:i]]
    out: list[_Part] = [""] if findings else []
    for f in shown if whole else shown[:SHOWN_RULED_OUT]:
        again = "" if whole or ids.count(f["id"]) == 1 else f" ({ids.count(f['id'])} times)"
        claim = f["claim"] if whole else _brief(f["claim"])
        out += _wrap(f"{f['id']}{again}: {claim}", "ruled out: ", "  ")
    if not whole and len(shown) > SHOWN_RULED_OUT:
        out.append(f"  ... and {len(shown) - SHOWN_RULED_OUT} more ruled out")
    return out


def _seen(document: Mapping[str, Any], *, whole: bool) -> list[_Part]:
    """What bears on latency and is not judged."""
    out: list[_Part] = [""] if document.get("seen") else []
    for entry in document.get("seen", []):
        out += _wrap(f"{entry['what']}: {entry['text']}", "seen, not judged: ", "  ")
        out += [line for e in entry["evidence"][: None if whole else 1] for line in _proof(e, whole=whole)]
    return out


def _inputs(document: Mapping[str, Any], *, whole: bool) -> list[_Part]:
    read = sum(i["rows"] for i in document["inputs"])
    files, skipped = len(document["inputs"]), document["skipped"]
    out: list[_Part] = [f"read: {counted(read, 'record')} from {counted(files, 'file')}", *_fleet(document)]
    shown = skipped if whole else skipped[:SHOWN_SKIPPED]
    for s in shown:
        out += _wrap(f"skipped {s['path']}: {s['reason']}", "  ", "    ")
    if len(skipped) > len(shown):
        out.append(f"  ... and {counted(len(skipped) - len(shown), 'more file')} skipped")
    return out


def _fleet(document: Mapping[str, Any]) -> list[_Part]:
    ranks = document.get("fleet", [])
    closer = ", ".join(str(row["rank"]) for row in ranks if row["closer"])
    return _wrap(f"fleet: {counted(len(ranks), 'rank')} met; read in full: {closer}", "") if ranks else []


def _chains(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return paths((edge["from"], edge["to"]) for edge in document.get("chain", []))


def _readable(text: str) -> str:
    """Evidence that is name=value pairs in the units of people, the first few; a quote as it is."""
    if not PAIRS.fullmatch(text):
        return _short(text)
    pairs = text.split(" ")
    shown = [_pair(p) for p in pairs[:SHOWN_PAIRS]]
    return ", ".join([*shown, "..."] if len(pairs) > SHOWN_PAIRS else shown)


def _pair(pair: str) -> str:
    if sized := SIZED.fullmatch(pair):
        name, unit, value = sized.groups()
        return f"{name.replace('_', ' ')} {human_fact(float(value), unit)}"
    name, _, value = pair.partition("=")
    return f"{name.replace('_', ' ')} {LONG.sub(_cut, value)}"


def _cut(number: re.Match[str]) -> str:
    """A long decimal in four digits."""
    return f"{float(number[0]):.4g}"


def _brief(text: str) -> str:
    """The first sentences that fit, or the begin of the first."""
    if len(text) <= BRIEF:
        return text
    ends = [m.end() for m in SENTENCE_END.finditer(text) if m.end() <= BRIEF]
    return text[: ends[-1]] if ends else textwrap.shorten(text, BRIEF, placeholder=" ...")


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= QUOTED else flat[: QUOTED - 3] + "..."


def _wrap(text: str, head: str, indent: str = "") -> list[_Part]:
    """`head` and the text; further lines are indented by `indent`, or to the end of `head`."""
    return [_Paragraph(head, text, indent or " " * len(head))]


def _lines(part: _Part, width: int) -> list[str]:
    if isinstance(part, str):
        return [part]
    lines = textwrap.wrap(part.text, width, initial_indent=part.head, subsequent_indent=part.indent,
                          break_long_words=False, break_on_hyphens=False)
    return lines or [part.head.rstrip()]
