"""Scores of evaluation runs, and log-probabilities of one prompt in several batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.cells import column, word_set, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["logprob_json", "logprob_table", "score_json", "score_table"]

COUNT = word_set(
    "questions num_questions n_questions question_count n_samples num_samples samples num_examples examples "
    "problems num_problems n total_questions n_questions_per_run items num_items"
)
SURE = lazy(r".*questions?(?:_.*)?")  # a count of these needs no other word that tells of scores
NUMERIC = lazy(
    r"(?:^|_)(?:bf16|fp16|fp32|fp8|fp4|nvfp4|mxfp4|int8|int4|w\d+a\d+|quant\w*|baseline|bfloat16)(?:_|$)"
)
SCORE = lazy(
    r"(?:^|_)(?:acc|accuracy|score|scores|exact_match|em|pass|gsm8k|mmlu|gpqa|humaneval|math|f1|correct)"
    r"(?:_|@|\d|$)"
)
PLAIN = word_set("scores score runs values results accuracy acc accuracies exact_match value metrics result")
REPEAT = lazy(r"(?:run|seed|rep|repeat|trial)_?\d+")
STDERR = lazy(r"stderr|std_err|standard_error")
ARM = lazy(
    r"(?:.*_)?(?:arm|config|setting|backend|mode|precision|dtype|variant|build|group|label|quant|quantization)"
    r"|name|kernel|engine|version|commit|flags?"
)
RIGHT = word_set("correct num_correct n_correct right passed num_passed solved hits")
SAMPLING = ("temperature", "do_sample", "sampling_temperature")
SET = word_set("set task dataset benchmark model suite")
BATCH = lazy(r"(?:.*_)?(?:bs|batch|batch_size|batchsize)_?(\d+|n)(?:_.*)?")
LOGPROB = lazy(r"log_?probs?")


def score_json(document: Any, source: Source, out: Reading) -> bool:  # noqa: ARG001
    """Scores by set and arm, whatever the nesting; needs a count of questions or a word for a score."""
    if isinstance(document, list):
        return _score_records(document, out)
    if not isinstance(document, dict):
        return False
    for value in document.values():
        if isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
            return _score_records(value, out, _count(document))
    questions = _count(document)
    leaves = list(_leaves(document, ()))
    named = any(SCORE.search(words(k)) for k in _keys(document))
    sure = questions is not None and any(SURE.fullmatch(words(k)) for k in _keys(document))
    sure |= questions is not None and any(NUMERIC.search(words(k)) for k in _keys(document))
    if not leaves or not (sure or named):
        return False
    told = [(p, v) for p, v in leaves if any(SCORE.search(words(k)) for k in p)]
    leaves = told or leaves
    if not any(len(v) > 1 for _, v in leaves) and not named and questions is None:
        return False
    values = [x for _, v in leaves for x in v]
    scale = _scale(values)
    if scale is None:
        return False
    for path, scores in leaves:
        arm, group = _arm(path)
        for i, score in enumerate(scores):
            where = ".".join(path) + (f"[{i}]" if len(scores) > 1 else "")
            out.add("scores", where=where, set=group, arm=arm, score=score * scale, questions=questions)
    return True


def _count(document: dict[str, Any]) -> int | None:
    for key, value in document.items():
        if words(str(key)) in COUNT and isinstance(value, int) and value > 1:
            return value
    inner = [_count(v) for v in document.values() if isinstance(v, dict)]
    known = {c for c in inner if c is not None}
    return known.pop() if len(known) == 1 else None


def _keys(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield str(key)
            yield from _keys(value)


def _leaves(node: dict[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[float]]]:
    """Lists of scores, and single numbers, with their keys; counts and errors left out."""
    if len(above) > 5:
        return
    for key, value in node.items():
        w = words(str(key))
        if w in COUNT or STDERR.search(w):
            continue
        path = (*above, str(key))
        if isinstance(value, dict):
            yield from _leaves(value, path)
        elif isinstance(value, list) and value and all(_is_number(x) for x in value):
            yield path, [float(x) for x in value]
        elif _is_number(value) and (SCORE.search(w) or isinstance(value, float)):
            yield path, [float(value)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _scale(values: list[float]) -> float | None:
    """1 for shares, 0.01 for percent, None where the numbers are no scores."""
    if not values or min(values) < 0:
        return None
    if max(values) <= 1:
        return 1.0
    return 0.01 if 5 < max(values) <= 100 and min(values) > 1 else None


def _arm(path: tuple[str, ...]) -> tuple[str, str | None]:
    """(arm, set): the last key that is no plain word for scores, and the keys above it."""
    keys = list(path)
    while keys and (words(keys[-1]) in PLAIN or REPEAT.fullmatch(words(keys[-1]))):
        keys.pop()
    return (keys[-1], " ".join(keys[:-1]) or None) if keys else ("", None)


def _score_records(records: list[Any], out: Reading, questions: int | None = None) -> bool:
    """One object per run: {"arm": .., "score": .., "questions": ..}."""
    rows = []
    for i, record in enumerate(records):
        if not isinstance(record, dict):
            return False
        plain = {words(str(k)): v for k, v in record.items()}
        asked = {k: v for k, v in plain.items() if SCORE.search(k) and _is_number(v) and not STDERR.search(k)}
        arm = " ".join(str(v)[:60] for k, v in plain.items() if ARM.fullmatch(k) and isinstance(v, str | int))
        group = " ".join(str(v)[:60] for k, v in plain.items() if k in SET and isinstance(v, str))
        asked_of = (v for k, v in plain.items() if (k in COUNT or k == "total") and isinstance(v, int))
        count = next(asked_of, None) or questions or _count(record)
        score = next((float(v) for k, v in asked.items() if k not in RIGHT), None)
        if score is None and count and (right := next(iter(asked.values()), None)) is not None:
            score = right / count
        if score is None or not arm:
            return False
        rows.append((i, arm, group, score, count))
    scale = _scale([r[3] for r in rows])
    if scale is None:
        return False
    for i, arm, group, score, count in rows:
        where = f"run {i + 1}"
        out.add("scores", where=where, set=group or None, arm=arm, score=score * scale, questions=count)
    return True


def score_table(grid: Grid, source: Source, out: Reading) -> bool:  # noqa: ARG001
    """A row per run: arm, score, maybe the number of questions."""
    names = [words(h) for h in grid.header]
    found = [i for i, n in enumerate(names) if SCORE.search(n) and not STDERR.search(n)]
    at = next((i for i in found if names[i] not in RIGHT), found[0] if found else None)
    arms = [i for i, n in enumerate(names) if ARM.fullmatch(n)]
    if at is None or not arms:
        return False
    sets = [i for i, n in enumerate(names) if n in SET]
    count = next((i for i, n in enumerate(names) if n in COUNT or n == "total"), None)
    scores = column(grid, at, out)
    counts = column(grid, count, out) if count is not None else [None] * len(scores)
    if names[at] in RIGHT:
        scores = [s / n if s is not None and n else None for s, n in zip(scores, counts, strict=True)]
    scale = _scale([s for s in scores if s is not None])
    if scale is None:
        return False
    for row, line, score, number in zip(grid.rows, grid.numbers, scores, counts, strict=True):
        if score is None:
            continue
        arm, group_name = (" ".join(row[i] for i in part if i < len(row)) for part in (arms, sets))
        out.add(
            "scores", where=f"line {line}", set=group_name or None, arm=arm, score=score * scale,
            questions=int(number) if number else None,
        )
    return True


def logprob_json(document: Any, source: Source, out: Reading) -> bool:  # noqa: ARG001
    """Keys that name batches (bs1, batch_32) over lists of numbers, per prompt or over prompts."""
    found = list(_batches(document, "", 0))
    arms = {arm for arm, _, _ in found}
    if len(arms) < 2:
        return False
    heat = max(_sampling(document, 0), default=None)
    for arm, prompt, values in found:
        out.add(
            "logprobs", where=f"{prompt or 'prompt'}: {arm}", arm=arm, prompt=prompt, values=values,
            temperature=heat,
        )
    return True


def _sampling(node: Any, depth: int) -> Iterator[float]:
    """Temperatures that the document states; 1 where it says that sampling is on."""
    if isinstance(node, list) and depth < 5:
        for item in node[:1000]:
            yield from _sampling(item, depth + 1)
    if not isinstance(node, dict) or depth > 5:
        return
    for key, value in node.items():
        if words(str(key)) in SAMPLING and isinstance(value, int | float):
            yield float(value)
        elif isinstance(value, dict | list):
            yield from _sampling(value, depth + 1)


def _batches(node: Any, prompt: str, depth: int) -> Iterator[tuple[str, str, list[float]]]:
    if depth > 5:
        return
    if isinstance(node, list):
        for i, item in enumerate(node):
            named = item if isinstance(item, dict) else {}
            name = str(named.get("prompt_id", named.get("prompt", i)))[:60]
            yield from _batches(item, name, depth + 1)
        return
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if m := BATCH.fullmatch(words(str(key))):
            yield from ((f"bs{m[1]}", p, v) for p, v in _lists(value, prompt))
        elif isinstance(value, dict | list):
            yield from _batches(value, prompt or str(key)[:60], depth + 1)


def _lists(value: Any, prompt: str) -> Iterator[tuple[str, list[float]]]:
    """Lists of log-probabilities (numbers <= 0) at or below a batch's key."""
    if isinstance(value, list) and value and all(_is_number(x) for x in value):
        if all(x <= 0 for x in value):
            yield prompt, [float(x) for x in value]
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _lists(item, f"{prompt}{i}")
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, list | dict):
                inner = prompt if LOGPROB.search(words(str(key))) else str(key)[:60]
                yield from _lists(item, inner)


def logprob_table(grid: Grid, source: Source, out: Reading) -> bool:  # noqa: ARG001
    """Columns that name batches, a row per token; or a batch column beside a log-probability."""
    names = [words(h) for h in grid.header]
    arms = {i: f"bs{m[1]}" for i, n in enumerate(names) if (m := BATCH.fullmatch(n))}
    value = next((i for i, n in enumerate(names) if LOGPROB.search(n) and i not in arms), None)
    batch = next((i for i, n in enumerate(names) if n in ("batch", "batch_size", "bs", "arm")), None)
    prompt = next((i for i, n in enumerate(names) if n.startswith(("prompt", "request"))), None)
    streams: dict[tuple[str, str], list[float]] = {}

    def text(row: tuple[str, ...], index: int | None) -> str:
        return row[index] if index is not None and index < len(row) else ""

    if len(arms) >= 2:
        parts = {i: column(grid, i, out) for i in arms}
        if any(v is not None and v > 0 for p in parts.values() for v in p):
            return False
        for r, row in enumerate(grid.rows):
            for i, arm in arms.items():
                if (v := parts[i][r]) is not None:
                    streams.setdefault((arm, text(row, prompt)), []).append(v)
    elif value is not None and batch is not None:
        for row, v in zip(grid.rows, column(grid, value, out), strict=True):
            if v is not None:
                streams.setdefault((f"bs{text(row, batch)}", text(row, prompt)), []).append(v)
    if len({arm for arm, _ in streams}) < 2:
        return False
    warm = next((i for i, n in enumerate(names) if n in SAMPLING), None)
    stated = column(grid, warm, out) if warm is not None else []
    heat = max((v for v in stated if v is not None), default=None)
    for (arm, name), values in streams.items():
        where = f"prompt {name}: {arm}"
        out.add("logprobs", where=where, arm=arm, prompt=name, values=values, temperature=heat)
    return True
