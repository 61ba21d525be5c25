"""Findings in words: severity, confidence, subject, measure, evidence and remedies for the page."""

import re
from dataclasses import dataclass

from moexray.core.pattern import lazy
from moexray.faces.numbers import human, human_fact, human_moment
from moexray.faces.report.fields import Fields, each, listed, named, number
from moexray.faces.report.safe import Folded, fold, relative_href, short_id

__all__ = ["Evidence", "Finding", "Piece", "Remedy", "Sight", "confidence_words", "findings", "pieces",
           "sights"]  # fmt: skip

_SEVERITIES = {
    "error": "Error: a request, a rank or the server failed, or answers are wrong",
    "warn": "Warning: it costs latency, memory or trust in a number; the service runs",
    "info": "Info: true and useful, nothing is broken",
}
# The same of statements about a file, families "input" and "snapshot".
_FILE_SEVERITIES = {
    "error": "Error: a file was refused",
    "warn": "Warning: rows were lost or are ambiguous, so what follows from them is weaker",
    "info": "Info: read in full, nothing was lost",
}
_FILE_FAMILIES = ("input", "snapshot")
# Bands of confidence as documented for the verdicts.
_CONFIDENCES = (
    (0.9, "arithmetic that leaves no other reading"),
    (0.7, "a pattern specific to this fault"),
    (0.5, "two series move together, no mechanism seen"),
    (0.0, "a hypothesis: cannot tell yet"),
)
_CANNOT_TELL_BELOW = 0.5
_CODE = lazy(
    r"`([^`\n]{1,300})`"
    r"|(?<![\w.`=-])((?:export )?[A-Z][A-Z0-9_]{2,}=[^\s,;]*[^\s,;.)]"
    r"|--[a-z][\w-]*(?:=[^\s,;]*[^\s,;.)])?"
    r"|[a-z_]+(?:\.\w+)+\([^()\s]*\))"
)
_PAIR = lazy(r"(?<!\w)\w{1,60}_(bytes|s|ms|us|ns)=(-?\d{1,19}(?:\.\d{1,19})?)(?![\w.])")
_FIRST_SENTENCE = lazy(r".{30,}?(?:[^\W\d_]{2}\)?[.:](?= [A-Z])|\d\)?\.(?= [A-Z\d]))", re.DOTALL)
_LINE = lazy(r"(?:lines?\s+|L)?(\d+(?:\s*[-–]\s*\d+)?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text: plain, code, code worth a copy button, or a number in human units."""

    text: str
    kind: str = "plain"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One quoted row or line, with the anchor it is known by on the page."""

    anchor: str
    label: str
    href: str | None
    quote: Folded
    quoted: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing to do, how to take it back, what to beware of, and how to see whether it helped."""

    id: str
    action: tuple[Piece, ...]
    undo: tuple[Piece, ...]
    caveats: tuple[Piece, ...]
    verify: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding as the page shows it; every text is cleaned, every number in words."""

    anchor: str
    id: str
    severity: str
    severity_words: str
    confidence: str
    confidence_words: str
    cannot_tell: bool
    claim: Folded
    headline: str
    details: str
    subject: str
    value: str
    limit: str
    exact: str
    evidence: tuple[Evidence, ...]
    causes: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    settle_with: tuple[str, ...]


def findings(document: Fields, key: str, letter: str, base: str) -> tuple[Finding, ...]:
    """Give the findings under a key with anchors: letter and number, such as "f1".

    Args:
        document: the diagnosis document.
        key: "findings" or "ruled_out".
        letter: first letter of the anchors.
        base: folder the sources are relative to, as seen from the report.
    """
    return tuple(
        _finding(fields, f"{letter}{index}", base)
        for index, fields in enumerate(each(document, key), start=1)
    )


@dataclass(frozen=True, slots=True)
class Sight:
    """What bears on latency and no rule judges."""

    what: str
    text: Folded
    evidence: tuple[Evidence, ...]


def sights(document: Fields, base: str) -> tuple[Sight, ...]:
    """Give what was seen and not judged; `base` as in findings."""
    return tuple(
        Sight(
            what=str(fold(fields.get("what") or "(no name given)", at=200)),
            text=fold(fields.get("text")),
            evidence=tuple(
                _evidence(item, f"s{index}-e{n}", base)
                for n, item in enumerate(each(fields, "evidence"), start=1)
            ),
        )
        for index, fields in enumerate(each(document, "seen"), start=1)
    )


def confidence_words(confidence: float | None) -> str:
    """Say what a confidence between 0 and 1 stands for; None is unknown."""
    if confidence is None:
        return "no value given"
    return next((words for floor, words in _CONFIDENCES if confidence >= floor), "")


def pieces(value: object) -> tuple[Piece, ...]:
    """Split prose into plain text and code: `back-ticked`, NAME=value, --flag, module.call()."""
    folded = fold(value, at=1000)
    text, out, end = str(folded), [], 0
    for hit in _CODE.finditer(text):
        code = (hit.group(1) or hit.group(2)).strip()
        if not code:
            continue
        out.append(Piece(text[end : hit.start()]))
        out.append(Piece(code, "copy" if re.search(r"[=( ]", code) else "code"))
        end = hit.end()
        if out[-1].kind == "copy":  # it stands on a line of its own: no comma may start the next
            end += len(text[end:]) - len(text[end:].lstrip(" .,;"))
    out.append(Piece(text[end:]))
    return tuple(piece for piece in out if piece.text)


def _finding(fields: Fields, anchor: str, base: str) -> Finding:
    severity = named(fields, "severity")
    confidence = number(fields.get("confidence"))
    unit = named(fields, "unit")
    value, limit = number(fields.get("value")), number(fields.get("limit"))
    nameless = unit in ("count", "")  # a bare number beside a claim that says what is counted
    subject = fields.get("subject")
    claim = fold(fields.get("claim") or "(no claim given)")
    end = _FIRST_SENTENCE.match(claim.head)
    headline = claim.head[: end.end()] if end else claim.head
    return Finding(
        anchor=anchor,
        id=short_id(fields.get("id") or "(no id)"),
        severity=severity if severity in _SEVERITIES else "info",
        severity_words=_severity_words(severity, named(fields, "id")),
        confidence="unknown" if confidence is None else human(confidence, "ratio"),
        confidence_words=confidence_words(confidence),
        cannot_tell=confidence is not None and confidence < _CANNOT_TELL_BELOW,
        claim=claim,
        headline=headline,
        details=claim.head[len(headline) :].strip(),
        subject=_subject_words(subject if isinstance(subject, dict) else {}),
        value="" if value is None or nameless else human(value, unit),
        limit="" if limit is None or nameless else human(limit, unit),
        exact=_exact(value, limit, unit),
        evidence=tuple(
            _evidence(item, f"{anchor}-e{index}", base)
            for index, item in enumerate(each(fields, "evidence"), start=1)
        ),
        causes=tuple(short_id(cause) for cause in listed(fields, "implied_by") if cause),
        remedies=tuple(_remedy(item) for item in each(fields, "remedies")),
        settle_with=tuple(str(fold(item)) for item in listed(fields, "settle_with") if item),
    )


def _severity_words(severity: str, rule: str) -> str:
    about_file = rule.split(".", maxsplit=1)[0] in _FILE_FAMILIES
    words = _FILE_SEVERITIES if about_file else _SEVERITIES
    return words.get(severity, f"Severity unknown: {fold(severity, at=40)}")


def _evidence(fields: Fields, anchor: str, base: str) -> Evidence:
    source, where = named(fields, "source", "(source unknown)"), named(fields, "where")
    line = _LINE.fullmatch(where.strip())
    label = f"{source}:{line.group(1)}" if line else f"{source}, {where}" if where else source
    quote = fold(fields.get("text"))
    return Evidence(
        anchor=anchor,
        label=str(fold(label, at=200)),
        href=relative_href(source, base),
        quote=quote,
        quoted=_with_units(quote.head),
    )


def _with_units(text: str) -> tuple[Piece, ...]:
    """Put the human size behind each name=value pair whose name ends with a unit."""
    out, end = [], 0
    for hit in _PAIR.finditer(text):
        raw = hit.group(2)
        out.append(Piece(text[end : hit.end()]))
        out.append(Piece(human_fact(float(raw) if "." in raw else int(raw), hit.group(1)), "human"))
        end = hit.end()
    out.append(Piece(text[end:]))
    return tuple(piece for piece in out if piece.text)


def _remedy(fields: Fields) -> Remedy:
    return Remedy(
        id=short_id(fields.get("id")),
        action=pieces(fields.get("action")),
        undo=pieces(fields.get("undo")),
        caveats=pieces(fields.get("caveats")),
        verify=pieces(fields.get("verify")),
    )


def _exact(value: float | None, limit: float | None, unit: str) -> str:
    """Give the numbers before rounding, for whoever checks the arithmetic."""
    known = [
        f"{name} {human(size, 'count')}"
        for name, size in (("value", value), ("limit", limit))
        if size is not None and unit == "bytes"
    ]
    return f"{', '.join(known)} bytes" if known else ""


def _subject_words(subject: Fields) -> str:
    """Say whom a finding is about: "rank 3, device 3, layer 17, steps 120 to 240"."""
    parts = [
        f"{name} {named(subject, name)}"
        for name in ("rank", "device", "stream", "layer", "expert")
        if subject.get(name) is not None
    ]
    for name, start, end, say in (
        ("steps", "step_from", "step_to", _step_words),
        ("time", "t_from_ns", "t_to_ns", _time_words),
    ):
        edges = [number(subject.get(start)), number(subject.get(end))]
        known = [say(edge) for edge in edges if edge is not None]
        if known:
            parts.append(f"{name} {' to '.join(dict.fromkeys(known))}")
    return ", ".join(str(fold(part, at=100)) for part in parts)


def _step_words(value: float) -> str:
    return human(value, "count")


def _time_words(value: float) -> str:
    return human_moment(value / 1e9)
