"""Output of tests that compare one prompt's numbers in several batches; accuracies that evaluations print."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]

ABOUT = lazy(r"bitwise|batch[- ]?invarian|\bBS ?= ?\w+ vs\.? |batch[ _]size \w+ vs", re.IGNORECASE)
VERDICT = lazy(r"\[?\b(FAIL(?:ED)?|PASS(?:ED)?|MISMATCH|MATCH|OK|DIFFERS?)\b\]?[: ]", re.IGNORECASE)
DIFF = lazy(r"(?:diff(?:erence)?|delta)\w*\D{0,5}?(\d[\d.]*(?:[eE][-+]?\d+)?)", re.IGNORECASE)
MISMATCH = lazy(r"bitwise (?:mismatch|differ)|(?:mismatch|differ).*bitwise|not bitwise", re.IGNORECASE)
FAILED = ("FAIL", "MISM", "DIFF")
PASSED = ("PASS", "MATCH", "OK")
TOKENS = lazy(r"\b(?:BS|batch(?:[ _]size)?) ?= ?(\w+) tokens?: ?(\S.*)$", re.IGNORECASE)
TEMPERATURE = lazy(r"\btemperature ?[=:] ?([\d.]+)", re.IGNORECASE)
ACCURACY = lazy(
    r"(?:(?:overall|final|total|average) )?(?:accuracy|acc|exact[_ ]match)\s*[:=]\s*(\d+(?:\.\d+)?)\s*(%?)",
    re.IGNORECASE,
)
QUESTIONS = lazy(r"\b(\d{2,})/\1\b|(?:questions|examples|samples)\s*[:=]\s*(\d{2,})\s*$", re.IGNORECASE)


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds a row per printed accuracy, and per prompt and step that a test of batches judged."""
    _accuracies(lines, out)
    if not any(ABOUT.search(line.text) for line in lines):
        return
    temperature = next((float(m[1]) for line in lines if (m := TEMPERATURE.search(line.text))), None)
    pending: Line | None = None
    diff: float | None = None
    tokens: list[str] = []

    def close() -> None:
        if pending is not None:
            same = len(set(tokens)) == 1 if len(tokens) > 1 else None
            out.add("mismatch", where=f"line {pending.number}", passed=False, diff=diff, same_tokens=same,
                    temperature=temperature, text=pending.full or pending.text)

    for line in lines:
        text = line.text
        if pending is not None and (m := TOKENS.search(text)):
            tokens.append(m[2].strip())
            continue
        verdict = VERDICT.search(text)
        mismatch = MISMATCH.search(text)
        said = verdict[1].upper() if verdict else ""
        if not verdict and not mismatch:
            continue
        close()
        pending, diff, tokens = None, None, []
        if mismatch or (said.startswith(FAILED) and DIFF.search(text)):
            pending = line
            diff = float(d[1]) if (d := DIFF.search(text)) else None
        elif said.startswith(PASSED):
            out.add("mismatch", where=f"line {line.number}", passed=True, temperature=temperature, text=text)
    close()


def _accuracies(lines: Sequence[Line], out: Reading) -> None:
    """Lines that hold nothing but an accuracy; the file is one arm, each line a run of it."""
    questions: int | None = None
    for line in lines:
        if m := QUESTIONS.search(line.text):
            questions = int(m[1] or m[2])
        if (m := ACCURACY.fullmatch(line.text.strip())) is None:
            continue
        score = float(m[1]) / (100 if m[2] or float(m[1]) > 1 else 1)
        if score <= 1:
            out.add("scores", where=f"line {line.number}", score=score, questions=questions)
