"""Results of lm-evaluation-harness: its JSON file and the table that it prints, a run each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.cells import number, words

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["harness_json", "harness_table"]

STDERR = "_stderr"
MODEL = lazy(r"(?:pretrained|model|model_path)=([^,()\s]+)")
PRECISION = lazy(
    r"[-_.]?(?:bf16|fp16|fp8|fp4|nvfp4|mxfp4|int8|int4|awq|gptq|w\d+a\d+|dynamic|quantized|static)(?![a-z])",
    re.IGNORECASE,
)
RUN = lazy(r"\b(?:pretrained|model)=")


def harness_json(document: Any, source: Source, out: Reading) -> bool:  # noqa: ARG001
    """`results` by task, with `exact_match,strict-match` and its `_stderr`; the arm is how the model ran."""
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, dict) or not isinstance(document.get("config", document.get("configs")), dict):
        return False
    config = document.get("config")
    given = config.get("model_args") if isinstance(config, dict) else None
    if isinstance(given, dict):
        given = ",".join(f"{k}={v}" for k, v in given.items())
    model, arm = _arm(given if isinstance(given, str) else "")
    before = out.rows
    for task, figures in results.items():
        for key, value in figures.items() if isinstance(figures, dict) else ():
            metric, _, rest = str(key).partition(",")
            error = figures.get(f"{metric}{STDERR},{rest}" if rest else f"{metric}{STDERR}")
            known = isinstance(value, int | float) and isinstance(error, int | float)
            if known and 0 <= value <= 1 and not metric.endswith(STDERR):
                out.add(
                    "scores", where=f"results.{task}.{key}", set=f"{task} {key} {model}".strip(), arm=arm,
                    score=float(value), questions=_questions(document, task), stderr=float(error),
                )
    return out.rows > before


def _questions(document: dict[str, Any], task: str) -> int | None:
    counts = document.get("n-samples")
    found = counts.get(task) if isinstance(counts, dict) else None
    count = found.get("effective") if isinstance(found, dict) else found
    return count if isinstance(count, int) and count > 1 else None


def _arm(settings: str) -> tuple[str, str | None]:
    """(model without the name of a precision, settings) of `pretrained=M,dtype=bfloat16`."""
    m = MODEL.search(settings)
    return PRECISION.sub("", m[1]) if m else "", settings[:200] or None


def harness_table(grid: Grid, source: Source, out: Reading) -> bool:  # noqa: ARG001
    """`|Tasks|Version|Filter|n-shot|Metric|..|Value|..|Stderr|` below a line with the model's settings."""
    names = [words(h) for h in grid.header]
    if not {"value", "metric", "stderr"} <= set(names) or not {"task", "tasks"} & set(names):
        return False
    task_at = names.index("tasks" if "tasks" in names else "task")
    at = {n: names.index(n) for n in ("metric", "value", "stderr")}
    filter_at = names.index("filter") if "filter" in names else None
    model, arm = _arm(next((c for c in grid.comments if RUN.search(c)), ""))
    before, task = out.rows, ""
    for row, line in zip(grid.rows, grid.numbers, strict=True):
        if len(row) < len(names):
            continue
        task = row[task_at] or task
        score, error = number(row[at["value"]]), number(row[at["stderr"]])
        if score is None or error is None or not 0 <= score <= 1:
            continue
        chosen = row[filter_at] if filter_at is not None else ""
        out.add(
            "scores", where=f"line {line}", set=f"{task} {row[at['metric']]},{chosen} {model}".strip(),
            arm=arm, score=score, stderr=error,
        )
    return out.rows > before
