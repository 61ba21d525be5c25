"""Tables of counts in text: wide (one column per rank or expert), long (layer, expert, count)."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.shapes.routing_facts import check_cells, stray_id
from moexray.readers.shapes.routing_words import count_columns, is_combined, role_of, words

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["read_csv"]

LARGEST_ID = 65_535  # of an expert, slot or rank
SHOWN = 5  # places named one by one
MAX_COUNT = 1 << 50  # tokens; above it the sums of a file would no longer be exact
_SUFFIX = r"_?(\d+)(?:_(?:tokens?|load|counts?))?$"
_RANK = lazy(r"^(?:tokens?_)?(?:(?:moe_)?ep_?rank|rank|ep|gpu|device|dev|card|npu|worker)" + _SUFFIX)
_EXPERT = lazy(
    r"^(?:tokens?_)?(?:e|exp|experts?|logical(?:_expert)?|expert_id|physical(?:_expert)?|slot|phy|p)"
    + _SUFFIX
)
_LAYER = lazy(r"^(?:moe_)?(?:layer|l)_?(\d+)(?:_(?:tokens?|load|counts?))?$")
_GROUPED = lazy(r"^-?\d{1,3}(?:[,' _\u00a0\u202f.]\d{3})+$")
_COMMA = lazy(r"^-?\d+,\d+$")
_TOKEN_WORDS = frozenset(("token", "tokens", "load", "loads", "count", "counts", "routed", "hits"))
_TOKENS = lazy(r"\b(?:tokens?|routed|experts?)\b", re.IGNORECASE)
SURE_ROWS = 8  # rows whose totals share a divisor by chance once in 250 tables
_CLOCK = lazy(r"^(?:t|ts|time|timestamp|datetime|date|elapsed|unix_time|wall_time)(?:_(?:s|ms|us|ns))?$")
BY_ROW = 1 << 30  # in place of a column of steps: each row is a moment of its own
_OTHER_UNITS = ("_ms", "_us", "_s", "_bytes", "_mib", "_gib", "_ns")
_MISSING = frozenset(("", "-", "na", "n/a", "null", "none", "[n/a]", "[not supported]"))
_UNITS = {"rank": "rank", "rank_id": "rank", "ep_rank": "rank", "gpu": "rank", "gpu_id": "rank",
          "device": "rank", "device_id": "rank", "ep": "rank", "npu": "rank", "expert": "logical",
          "expert_id": "logical",
          "expert_idx": "logical", "logical_expert": "logical", "logical_expert_id": "logical",
          "logical_id": "logical", "physical_expert": "physical", "physical_id": "physical",
          "physical_expert_id": "physical", "slot": "physical", "slot_id": "physical"}  # fmt: skip


def read_csv(grid: Grid, source: Source, out: Reading) -> bool:
    """Counts per layer and unit in a text table."""
    names = [words(h) for h in grid.header]
    if wide := _wide_columns(names):
        return _read_wide(grid, names, wide, source, out)
    return _read_long(grid, names, source, out)


def _wide_columns(names: list[str]) -> tuple[str, dict[int, int]] | None:
    """(axis, {unit: column}) if most columns are units of one kind."""
    for axis, pattern in (("rank", _RANK), ("logical", _EXPERT), ("layer", _LAYER)):
        found = {i: pattern.match(n) for i, n in enumerate(names)}
        units = {int(m[1]): i for i, m in found.items() if m}
        if len(units) >= 2 and len(units) >= len(names) - 4 and max(units) < 4 * len(units) + 4:
            slots = axis == "logical" and any(n.startswith(("physical", "slot", "phy", "p_")) for n in names)
            return ("physical" if slots else axis), units
    bare = {int(n): i for i, n in enumerate(names) if n.isdigit()}
    labelled = any(role_of(n) == "layer" for n in names)
    if labelled and len(bare) >= 2 and sorted(bare) == list(range(min(bare), min(bare) + len(bare))):
        return "logical", bare
    return None


def _read_wide(
    grid: Grid, names: list[str], wide: tuple[str, dict[int, int]], source: Source, out: Reading
) -> bool:
    axis, units = wide
    others = [i for i in range(len(names)) if i not in units.values()]
    labels = {names[i]: i for i in others}
    first = names[others[0]] if others else ""
    row_unit = next((_UNITS[n] for n in labels if n in _UNITS), None)
    if (row_unit == "rank" and axis == "rank") or first.startswith(("src", "dst", "from", "to")):
        return False  # a matrix of sender and receiver
    if axis == "layer" and row_unit is None:
        return False
    clocks = [i for n, i in labels.items() if _CLOCK.match(n)]
    if any(names[i].endswith(_OTHER_UNITS) for i in others if i not in clocks):
        return False
    layer = next((i for n, i in labels.items() if role_of(n) == "layer"), None)
    step = next((i for n, i in labels.items() if role_of(n) == "step"), None)
    if step is None and layer is None and clocks:
        step = BY_ROW
    ordered = [units[u] for u in sorted(units)]
    table = _Cells(grid, ordered, out)
    if table.decimals or not table.sound_any():
        return False
    rows = table.kept()
    values = [table.values[i] for i in rows]
    told = layer is not None or _says_tokens(grid, names)
    doubtful = axis == "rank" and not told and not _sums_of_tokens(values)
    if doubtful and not names[ordered[0]].startswith(("rank", "ep", "moe")):
        return False  # columns of GPUs: most such tables hold memory or load
    table.report()
    if rows:
        labels_of = [(_whole(grid.rows[i], step), _whole(grid.rows[i], layer)) for i in rows]
        _emit((axis, doubtful), row_unit, values, labels_of, (step, layer), source, out)
    return True


def _says_tokens(grid: Grid, names: list[str]) -> bool:
    """Whether a column or a comment has a word for tokens: bare ranks may hold times or bytes as well."""
    parts = {p for n in names for p in n.split("_")}
    return bool(parts & _TOKEN_WORDS) or any(_TOKENS.search(c) for c in grid.comments)


def _sums_of_tokens(values: list[list[float]]) -> bool:
    """Whether rows add up as choices of a router do: to one total, or to multiples of one top-k."""
    totals = [int(sum(row)) for row in values]
    same = len(totals) > 1 and len(set(totals)) == 1
    return same or (len(totals) >= SURE_ROWS and math.gcd(*totals) > 1)


def _emit(
    kind: tuple[str, bool], row_unit: str | None, values: list[list[float]],
    labels: list[tuple[int | None, int | None]], columns: tuple[int | None, int | None], source: Source,
    out: Reading,
) -> None:  # fmt: skip
    import numpy as np

    axis, doubtful = kind
    matrix = np.asarray(values).astype(np.int64)
    if axis == "layer":  # rows are units, columns layers
        matrix, axis = matrix.T, row_unit or "logical"
        steps, layers = np.zeros(len(matrix), np.int64), np.arange(len(matrix))
    else:
        count = np.arange(len(matrix))
        default = np.full(len(matrix), -1) if columns[0] is not None else count
        steps = np.array([s if s is not None else i for i, (s, _) in enumerate(labels)])
        layers = np.array([y if y is not None else int(default[i]) for i, (_, y) in enumerate(labels)])
        if columns[0] is None:
            steps = np.array([_nth(layers[: i + 1]) for i in range(len(layers))])
    if not matrix.any():
        out.notes.append("a table of counts that are all zero")
        out.rows += len(matrix)  # read, if not used
        out.problem("input.dirty_table", f"every count is zero ({len(matrix)} rows)", where="all rows",
                    lost=len(matrix), values={"dirty_rows": len(matrix)})  # fmt: skip
        return
    out.add_columns("counts", {"step": steps, "layer": layers, "tokens": matrix}, source=source.path,
                    rows=len(matrix), axis=axis, what="routed", name="table", layout="csv",
                    labelled=columns[0] not in (None, BY_ROW), doubtful=doubtful)  # fmt: skip


def _nth(layers: Any) -> int:
    """How often the last value came before: repeated layers are later windows."""
    return int((layers[:-1] == layers[-1]).sum())


def _read_long(grid: Grid, names: list[str], source: Source, out: Reading) -> bool:
    """layer, expert, count; rank, tokens; expert, routed, combined."""
    unit = next((i for i, n in enumerate(names) if n in _UNITS), None)
    found = count_columns(n for i, n in enumerate(names) if i != unit)
    counted = [i for i, n in enumerate(names) if n in found and i != unit]
    if unit is not None and not any(role_of(n) == "counts" for n in found):
        sure = any(_UNITS.get(n, "rank") != "rank" or role_of(n) == "layer" for n in names)
        counted = counted if sure else []  # tokens per rank alone may be those of requests
    if unit is None or not counted or len(names) > 8:
        return False
    axis = _UNITS[names[unit]]
    ranked = next((i for i, n in enumerate(names) if _UNITS.get(n) == "rank" and i != unit), None)
    if axis == "rank" and any(_UNITS.get(n) not in (None, "rank") for n in names):
        ranked, unit = unit, next(i for i, n in enumerate(names) if _UNITS.get(n) not in (None, "rank"))
        axis = _UNITS[names[unit]]
    layer = next((i for i, n in enumerate(names) if role_of(n) == "layer"), None)
    step = next((i for i, n in enumerate(names) if role_of(n) == "step"), None)
    table = _Cells(grid, counted, out)
    if table.decimals or not table.sound_any():
        return False
    clock = next((i for i, n in enumerate(names) if _CLOCK.match(n)), None)
    by_sender = layer is None and axis != "rank"
    table.check_ids(unit)
    table.report()
    rows = table.whole((clock if step is None else step, ranked if by_sender else layer))
    for at, column in enumerate(counted):
        if rows:
            _add_long(grid, rows, [table.values[i][at] for i in rows], (unit, layer, step, ranked),
                      (axis, names[column]), source, out)  # fmt: skip
    return True


def _add_long(
    grid: Grid, rows: list[int], values: list[float], columns: tuple[int | None, ...],
    naming: tuple[str, str], source: Source, out: Reading,
) -> None:  # fmt: skip
    import numpy as np

    unit, layer, step, sender = columns
    ids = np.array([_whole(grid.rows[i], unit) or 0 for i in rows])
    axis, name = naming
    by_sender = layer is None and sender is not None and axis != "rank"
    layer = sender if by_sender else layer
    layers = np.array([-1 if layer is None else _whole(grid.rows[i], layer) or 0 for i in rows])
    steps = np.array([0 if step is None else _whole(grid.rows[i], step) or 0 for i in rows])
    clock = next((i for i, h in enumerate(grid.header) if _CLOCK.match(words(h))), None)
    if step is None and clock is not None:
        moments = {t: n for n, t in enumerate(dict.fromkeys(grid.rows[i][clock] for i in rows))}
        steps = np.array([moments[grid.rows[i][clock]] for i in rows])
    keys, place = np.unique(np.stack([steps, layers]), axis=1, return_inverse=True)
    check_cells(keys.shape[1], int(ids.max()) + 1)
    matrix = np.zeros((keys.shape[1], int(ids.max()) + 1), np.int64)
    np.add.at(matrix, (place.reshape(-1), ids), np.asarray(values).astype(np.int64))
    what = "combined" if is_combined(name) else "routed"
    if not matrix.any() and what == "routed":
        out.rows += len(rows)
        out.problem("input.dirty_table", f"every count is zero ({len(rows)} rows)", where="all rows",
                    lost=len(rows), values={"dirty_rows": len(rows)})  # fmt: skip
        return
    out.add_columns("counts", {"step": keys[0], "layer": keys[1], "tokens": matrix}, source=source.path,
                    rows=len(matrix), axis=axis, what=what, name=name, layout="csv long",
                    labelled=step is not None, rows_are_ranks=by_sender)  # fmt: skip


def _whole(row: tuple[str, ...], column: int | None) -> int | None:
    """An integer label such as 3, "layer_3" or "L3"."""
    if column is None or column >= len(row):
        return None
    m = re.search(r"-?\d+(?=\D*$)", row[column].removesuffix(".0"))
    return int(m[0]) if m else None


class _Cells:
    """The numbers of some columns; rows that cannot be right are named, not used."""

    def __init__(self, grid: Grid, columns: list[int], out: Reading) -> None:
        self.grid, self.columns, self.out = grid, columns, out
        self.values: list[list[float]] = []
        self.faults: list[tuple[int, int | None, str]] = []
        self.ids: list[tuple[int, int | None, str]] = []
        self.missing: set[int] = set()
        self.decimals = False
        for i, row in enumerate(grid.rows):
            self.values.append(self._row(i, row))

    def _row(self, i: int, row: tuple[str, ...]) -> list[float]:
        width = len(self.grid.header)
        if len(row) != width:
            self.faults.append((i, None, f"{len(row)} fields where the header has {width}"))
            return []
        numbers = []
        for column in self.columns:
            number, fault = self._cell(row[column])
            if fault == "missing":
                self.missing.add(i)
            elif fault:
                self.faults.append((i, column, f"{fault} ({row[column]})"))
            elif number is not None and number != int(number):
                self.decimals = True
            numbers.append(number if number is not None else 0.0)
        return numbers

    def _cell(self, cell: str) -> tuple[float | None, str]:
        text = cell.strip().lower()
        if text in _MISSING:
            return None, "missing"
        if _GROUPED.match(text) and not re.fullmatch(r"-?\d+\.\d{3}", text):
            return None, "separators within a number"
        if _COMMA.match(text):
            return None, "decimal comma in a count"
        try:
            number = float(text)
        except ValueError:
            return None, "no number"
        if math.isnan(number):
            return None, "NaN"
        if math.isinf(number):
            return None, "infinite"
        if number > MAX_COUNT:
            return None, "impossibly large count"
        return (None, "negative count") if number < 0 else (number, "")

    def sound_any(self) -> bool:
        """Whether it looks like a table of counts at all: most cells are numbers of some kind."""
        words_in = sum(1 for _, _, text in self.faults if text.startswith("no number"))
        return bool(self.grid.rows) and words_in * 2 < max(1, len(self.grid.rows))

    def check_ids(self, column: int) -> None:
        """Names and drops rows whose unit is no id, or one far beyond all others."""
        import numpy as np

        sound = {i: _whole(self.grid.rows[i], column) for i in self.kept()}
        known = np.unique([n for n in sound.values() if n is not None and 0 <= n <= LARGEST_ID])
        stray = stray_id(known)
        for i, n in sound.items():
            cell = self.grid.rows[i][column]
            if n is None or not 0 <= n <= LARGEST_ID:
                self.ids.append((i, column, f"no id of an expert or rank ({cell})"))
            elif n == stray:
                self.ids.append((i, column, f"id far beyond all others, which end at {known[-2]} ({cell})"))

    def whole(self, columns: tuple[int | None, int | None]) -> list[int]:
        """Rows of the steps and layers of which every count is known: an unknown one is not 0."""
        at = [c for c in columns if c is not None]

        def place(i: int) -> tuple[str, ...]:
            return tuple(self.grid.rows[i][c] for c in at if c < len(self.grid.rows[i]))

        bad = {i for i, _, _ in self.faults} | self.missing
        aside = {place(i): None for i in sorted(bad)}
        odd = {i for i, _, _ in self.ids}
        rows = [i for i in self.kept() if i not in odd]
        kept = [i for i in rows if place(i) not in aside]
        if len(kept) < len(rows):
            names = [" ".join(self.grid.header[c] for c in at), *(" ".join(p) for p in list(aside)[:SHOWN])]
            shown = f"{names[0]} {', '.join(names[1:])}".strip() or "the table"
            more = f" and {len(aside) - SHOWN} more" if len(aside) > SHOWN else ""
            lost = len(rows) - len(kept)
            text = f"a count is unknown in {shown}{more}: set aside, {lost} sound rows with it"
            self.out.problem("input.dirty_table", text, where=shown, lost=lost, values={})
        return kept

    def kept(self) -> list[int]:
        bad = {i for i, _, _ in self.faults} | self.missing
        return [i for i in range(len(self.values)) if i not in bad]

    def report(self) -> None:
        """One problem per kind of fault, with the first place and how many."""
        kinds: dict[str, list[tuple[int, int | None, str]]] = {}
        for fault in [*self.faults, *self.ids]:
            kinds.setdefault(fault[2].split(" (")[0] if fault[1] is not None else "ragged", []).append(fault)
        if not self.kept():
            self.out.notes.append("a table of counts without a sound row")
            self.out.rows += len(self.faults)
        for kind, items in kinds.items():
            if kind == "ragged" and self.grid.ragged:
                continue  # the container of the tables names these
            i, column, text = items[0]
            where = f"row {i + 1} (line {self.grid.numbers[i]})"
            values: dict[str, object] = {"row": i + 1, "dirty_rows": len({x[0] for x in items})}
            if column is not None:
                where += f", column {self.grid.header[column]}"
                values["column"] = self.grid.header[column]
            label = "ragged row: " if kind == "ragged" else ""
            self.out.problem("input.dirty_table", f"{label}{text} in {where}; no statistic uses that row",
                             where=where, lost=len({x[0] for x in items}), values=values)  # fmt: skip
        if self.missing:
            self.out.notes.append(f"{len(self.missing)} rows with empty fields are not used")
