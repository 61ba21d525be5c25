"""Step logs: a row per engine step with its duration and what it worked on."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.cells import BASE, base, column, split_unit, word_set, words
from moexray.readers.shapes.figures import scale_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["join_ranks", "step_json", "step_table"]

NAN = float("nan")
FEW = 8  # rows; so many may rise by chance
STEP = word_set(
    "step iter iteration step_id step_idx engine_step iteration_counter iter_counter iter_id step_num"
    " decode_step"
)
DURATION = lazy(
    r"(?:engine_|decode_|forward_)?(?:step|iter|iteration|forward)?_?(?:time|latency|duration|dur|lat|elapsed)?"
    r"(?:_per_step)?"
)
PREFILL = lazy(r"prefill|extend_tok|chunk_tok|new_tok|context_(?:tok|req)|ctx_(?:tok|req)|prompt_tok")
PREFILL_NOT = lazy(r"time|latency|queue|cached?|total|limit|_(?:ms|us|s)\b")
REQUESTS = lazy(r"req|seqs")
SEQ_LEN = word_set("seq_len sequence_length seqlen max_seq_len context_len prompt_len seq")
BATCH = word_set("batch batch_size running num_running num_seqs bs num_active_requests")
RANK = word_set("rank dp_rank dp engine engine_id dp_id gpu")
PHASE = word_set(
    "phase kind type mode stage batch_type forward_mode step_type step_kind batch_kind batch_mode step_mode"
)
ROUTING = lazy(r"expert|topk|top_k|layer|logits|counts")
WORKS = lazy(r"prefill|mixed|extend|context|ctx", re.IGNORECASE)
YES_NO = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


def step_table(grid: Grid, source: Source, out: Reading) -> bool:
    """`step, step_ms, prefill_tokens_dp0, ...`; also a row per step and rank, or a phase column."""
    plain = [split_unit(h) for h in grid.header]
    if not any(p in STEP for p, _ in plain):
        return False
    columns = {h: _cells(grid, i, out) for i, h in enumerate(grid.header) if _wanted(h)}
    texts = {
        words(h): [row[i] if i < len(row) else "" for row in grid.rows]
        for i, h in enumerate(grid.header)
        if words(h) in PHASE
    }
    return _steps(columns, texts, source, out)


def _cells(grid: Grid, index: int, out: Reading) -> list[float | None]:
    """A column of numbers, or of yes and no."""
    said = [YES_NO.get(row[index].lower()) if index < len(row) else None for row in grid.rows]
    return said if any(v is not None for v in said) else column(grid, index, out)


def step_json(document: Any, source: Source, out: Reading) -> bool:
    """JSON lines or a list of objects, one per step; prefill tokens may be a list or mapping over ranks."""
    records = document if isinstance(document, list) else None
    if isinstance(document, dict):
        lists = (document.get(k) for k in ("steps", "iterations"))
        records = next((x for x in lists if isinstance(x, list)), None)
    if not records or not all(isinstance(r, dict) for r in records[:100]):
        return False
    names = list(dict.fromkeys(k for r in records[:100] for k in _flat(r)))
    if not any(split_unit(n)[0] in STEP for n in names) or any(ROUTING.search(words(n)) for n in names):
        return False
    records = [_flat(r) for r in records if isinstance(r, dict)]
    columns = {n: [_number(r.get(n)) for r in records] for n in names if _wanted(n)}
    texts = {words(n): [str(r.get(n, "")) for r in records] for n in names if words(n) in PHASE}
    return _steps(columns, texts, source, out)


def _flat(record: dict[str, Any], depth: int = 3) -> dict[str, Any]:
    """Nesting opened: {"prefill_tokens": [0, 512]} -> prefill_tokens_0, prefill_tokens_1."""
    out: dict[str, Any] = {}
    for key, value in record.items():
        listed = isinstance(value, list) and len(value) <= 1024
        inner = dict(enumerate(value)) if listed else value
        if isinstance(inner, dict) and depth:
            out.update({f"{key}_{k}": v for k, v in _flat(inner, depth - 1).items()})
        else:
            out[str(key)] = value
    return out


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _wanted(name: str) -> bool:
    p, w = split_unit(name)[0], words(name)
    return (
        p in STEP or w in SEQ_LEN or w in BATCH or w in RANK or _is_prefill(w)
        or _unit(name) is not None or bool(DURATION.fullmatch(p))
    )


def _unit(name: str) -> float | None:
    kind, factor = BASE.get(split_unit(name)[1], ("", 1.0))
    return factor if kind == "s" else None


def _is_prefill(name: str) -> bool:
    return bool(PREFILL.search(name)) and not PREFILL_NOT.search(name)


def _steps(
    columns: Mapping[str, Sequence[float | None]],
    texts: Mapping[str, Sequence[str]],
    source: Source,
    out: Reading,
) -> bool:
    by: dict[str, list[str]] = {"step": [], "dur": [], "prefill": [], "seq": [], "batch": [], "rank": []}
    for name in columns:
        p, w = split_unit(name)[0], words(name)
        if p in STEP and not split_unit(name)[1]:
            by["step"].append(name)
        elif _is_prefill(w):
            by["prefill"].append(name)
        elif w in SEQ_LEN:
            by["seq"].append(name)
        elif w in BATCH:
            by["batch"].append(name)
        elif w in RANK:
            by["rank"].append(name)
        elif _unit(name) is not None or DURATION.fullmatch(p):
            by["dur"].append(name)
    if not by["step"] or not (by["prefill"] or by["seq"] or texts):
        return False
    rows = len(columns[by["step"][0]])
    steps = [NAN if v is None else v for v in columns[by["step"][0]]]
    prefill, ranks = _prefill(columns, by["prefill"], texts, rows)
    table = {
        "step": steps,
        "dur_s": _durations(columns, by["dur"], rows),
        "prefill_tokens": prefill,
        "prefill_ranks": ranks,
        "seq_len": _first(columns, by["seq"], rows),
        "batch": _first(columns, by["batch"], rows),
    }
    width = len(by["prefill"])
    if by["rank"]:
        table = join_ranks(table)
        width = len({v for v in columns[by["rank"][0]] if v is not None})
    out.add_columns("steps", table, source=source.path, rows=rows, ranks=width or None)
    return True


def _first(columns: Mapping[str, Sequence[float | None]], names: list[str], rows: int) -> list[float]:
    return [NAN if v is None else v for v in columns[names[0]]] if names else [NAN] * rows


def _durations(columns: Mapping[str, Sequence[float | None]], names: list[str], rows: int) -> list[float]:
    """The column that is called a duration of a step, else any in units of time; a clock is none."""
    named = sorted(names, key=lambda n: not DURATION.fullmatch(split_unit(n)[0]))
    name = next((n for n in named if not _rises(columns[n])), None)
    if name is None:
        return [NAN] * rows
    values = columns[name]
    given = _unit(name)
    factor = scale_of(None, values) if given is None else given
    return [NAN if v is None else base(v, factor) for v in values]


def _rises(values: Sequence[float | None]) -> bool:
    known = [v for v in values if v is not None]
    return len(known) > FEW and known[-1] > known[0] and all(b >= a for a, b in itertools.pairwise(known))


def _prefill(
    columns: Mapping[str, Sequence[float | None]],
    names: list[str],
    texts: Mapping[str, Sequence[str]],
    rows: int,
) -> tuple[list[float], list[float]]:
    """Prefill tokens of all ranks and ranks that had any; a phase column only says whether."""
    if names:
        tokens = [n for n in names if not REQUESTS.search(words(n))]
        rows_of = zip(*(columns[n] for n in tokens or names), strict=True)
        per_row = [[v for v in cells if v is not None] for cells in rows_of]
        total = [sum(c) if c and tokens else NAN for c in per_row]
        return total, [float(sum(v > 0 for v in c)) if c else NAN for c in per_row]
    for values in texts.values():
        said = [WORKS.search(v) is not None for v in values]
        if any(said) and not all(said):
            return [NAN] * rows, [float(s) for s in said]
    return [NAN] * rows, [NAN] * rows


def join_ranks(table: dict[str, list[float]]) -> dict[str, list[float]]:
    """Rows of one step and several ranks as one row: the longest duration, the sum of the tokens."""
    joined: dict[float, list[int]] = {}
    for i, step in enumerate(table["step"]):
        joined.setdefault(step, []).append(i)

    def over(name: str, index: list[int], *, add: bool) -> float:
        known = [table[name][i] for i in index if table[name][i] == table[name][i]]
        return (sum(known) if add else max(known)) if known else NAN

    added = ("prefill_tokens", "prefill_ranks", "batch")
    return {n: [over(n, index, add=n in added) for index in joined.values()] for n in table}
