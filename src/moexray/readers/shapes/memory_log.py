"""Allocations and frees that a program logged itself, as JSON lines or a list of objects.

The form asked for: {"event": "alloc" | "free", "layer": 3, "scope": "expert", "expert": 5,
"size_bytes": 4096, "timestamp_us": 12.5, "tensor": "x1"}. Other common names of the keys, units in the
name of a key, module paths instead of numbers and missing ids are understood. A free without an id
belongs to the oldest living tensor of the same layer, scope, expert and size.
"""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.core.scopes import NOTHING, SCOPES, Scope, inside, scope_of
from moexray.core.sizes import BINARY_UNITS
from moexray.readers.gpu_samples import size, when

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["memory_log"]

# field -> names of its key, best first; lower case, other signs as underscores, the unit left off
KEYS: dict[str, tuple[str, ...]] = {
    "action": ("event", "action", "op", "operation", "event_type", "event_name", "ev", "type", "kind"),
    "size": ("size", "bytes", "nbytes", "num_bytes", "n_bytes", "alloc_size", "requested_size", "block_size"),
    "time": ("timestamp", "ts", "time", "t", "at", "when"),
    "layer": ("layer", "layer_idx", "layer_id", "layer_index", "layer_name"),
    "expert": ("expert", "expert_id", "expert_idx", "expert_index"),
    "scope": ("scope", "category", "phase", "tag"),
    "site": ("name", "module", "site", "path", "label", "tensor_name"),
    "tensor": ("tensor", "tensor_name", "buffer"),
    "id": ("tensor_id", "alloc_id", "allocation_id", "buffer_id", "block_id", "tensor", "tensor_name",
           "handle", "uid", "id", "buffer", "address", "addr", "ptr", "data_ptr", "pointer", "name"),
    "address": ("address", "addr", "ptr", "data_ptr", "pointer"),
    "step": ("step", "step_id", "step_idx", "iteration", "iter", "forward", "forward_id", "decode_step",
             "token", "token_idx", "token_id", "token_index", "position"),
    "rank": ("rank", "global_rank", "ep_rank", "tp_rank"),
    "device": ("device", "device_id", "gpu", "gpu_id", "device_index"),
}  # fmt: skip
ALLOC = frozenset(("alloc", "allocate", "allocated", "allocation", "malloc", "new", "create", "created",
                   "acquire", "acquired"))  # fmt: skip
FREE = frozenset(("free", "freed", "dealloc", "deallocate", "deallocated", "deallocation", "release",
                  "released", "delete", "deleted", "del"))  # fmt: skip
NOT_TENSORS = frozenset(("segment", "fail", "failed", "failure", "error", "oom", "retry"))
SCOPE_WORDS = {"gate": "router", "gating": "router", "routing": "router", "experts": "expert",
               "moe": "expert", "sampling": "token", "sampler": "token", "step": "token"}  # fmt: skip
UNIT_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "sec": 1_000_000_000}
UNIT = lazy(r"_(ns|us|ms|s|sec|bytes|b|kb|kib|mb|mib|gb|gib)$")
EPOCHS = ((1e17, 1), (1e14, 1_000), (1e11, 1_000_000), (1e8, 1_000_000_000))  # from here on ns, us, ms, s
LISTS = ("events", "records", "memory_events", "memory_log", "allocations", "log", "trace")
LOOK = 200  # records that tell whether the document is such a log
INTEGERS = ("size_bytes", "layer", "expert", "scope", "site", "step", "rank", "device")
LAYER, EXPERT = SCOPES.index("layer"), SCOPES.index("expert")
ENOUGH = 0.25  # share of the frees that repeat an id: then it is the tensor's
LARGEST = 1 << 60  # bytes, ns; beyond it nothing is real and sums would leave 64 bits
DIGITS = lazy(r"\d+")


def memory_log(document: Any, source: Source, out: Reading) -> bool:
    """Fills table memory_log; False if the document is no such log."""
    records = _records(document)
    if records is None:
        return False
    rows = _Rows()
    for record in records:
        rows.take(record)
    if not any(rows.columns["is_alloc"]):
        return False
    _fill(rows, source, out)
    return True


def _records(document: Any) -> list[Any] | None:
    if isinstance(document, dict):
        lists = [document[k] for k in LISTS if isinstance(document.get(k), list)]
        document = lists[0] if len(lists) == 1 else [document]  # a log of one line
    if not isinstance(document, list) or not document:
        return None
    head = [r for r in document[:LOOK] if isinstance(r, dict)]
    rows = _Rows()
    taken = sum(rows.take(record) for record in head)
    return document if head and taken * 2 >= len(head) else None


@lru_cache(maxsize=4096)
def _fields(names: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Field -> (key as written, unit) for the keys of a record."""
    known: dict[str, tuple[str, str]] = {}
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_")
        unit = UNIT.search(plain)
        known.setdefault(plain, (name, ""))
        if unit:
            known.setdefault(plain[: unit.start()], (name, unit[1]))
    return {f: known[key] for f, keys in KEYS.items() if (key := next((k for k in keys if k in known), None))}


@lru_cache(maxsize=4096)
def _is_alloc(word: str) -> bool | None:
    """Whether the word is that of an allocation; None where it is none of both."""
    parts = set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower()))
    if parts & NOT_TENSORS or "requested" in parts:
        return None
    if parts & FREE:
        return False
    return True if parts & ALLOC else None


@dataclass(slots=True)
class _Rows:
    """Columns as they grow, and what was odd."""

    columns: dict[str, Any] = field(
        default_factory=lambda: {n: [] for n in ("time", "unit", "is_alloc", "id", "address")}
        | {n: array("q") for n in INTEGERS}
    )
    sites: dict[str, int] = field(default_factory=lambda: {"": 0})
    other: int = 0
    without_size: int = 0

    def take(self, record: Any) -> bool:
        """Adds a record; False if it is no allocation and no free."""
        fields = _fields(tuple(record)) if isinstance(record, dict) else {}
        word = record[fields["action"][0]] if "action" in fields else None
        is_alloc = _is_alloc(word) if isinstance(word, str) else None
        if is_alloc is None:
            self.other += 1
            return False
        get = {f: record[key] for f, (key, _) in fields.items()}
        amount = _bytes(get.get("size"), fields["size"][1]) if "size" in fields else None
        identity = _identity(get.get("id"))
        if amount is None and (is_alloc or identity is None):
            self.without_size += 1
            return False
        scope, site = _scope(get)
        for name, value in (
            ("time", get.get("time")), ("unit", fields["time"][1] if "time" in fields else ""),
            ("is_alloc", is_alloc), ("size_bytes", amount or 0), ("id", identity),
            ("layer", scope.layer), ("expert", scope.expert), ("scope", scope.kind),
            ("site", self.sites.setdefault(site, len(self.sites))), ("step", _whole(get.get("step"))),
            ("address", _address(get.get("address"))), ("rank", _whole(get.get("rank"))),
            ("device", _whole(get.get("device"))),
        ):  # fmt: skip
            self.columns[name].append(value)
        return True


def _bytes(value: Any, unit: str) -> int | None:
    if isinstance(value, str):
        amount = size(value, unit or "b")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    else:
        amount = value * BINARY_UNITS.get(unit, 1)
    if amount is None or not abs(amount) < LARGEST:
        return None
    return int(abs(amount))  # a free may be written as a negative size


def _identity(value: Any) -> str | None:
    return None if value is None or isinstance(value, dict | list | bool) else str(value)


def _whole(value: Any) -> int:
    """A number from 0 on, also of "cuda:1"; -1 for all else."""
    if isinstance(value, bool) or value is None:
        return -1
    if isinstance(value, float):
        value = int(value) if value.is_integer() else -1
    if isinstance(value, str):
        found = DIGITS.findall(value[:100])
        value = int(found[-1]) if found and len(found[-1]) < 10 else -1
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else -1


def _address(value: Any) -> int | None:
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return None
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def _scope(get: dict[str, Any]) -> tuple[Scope, str]:
    """What the fields say, where they leave something open filled up by the names; and the name to show."""
    said = _said(*(_plain(get.get(f)) for f in ("layer", "expert", "scope")))
    site = get.get("site")
    site = site[:300] if isinstance(site, str) else ""
    if said.layer < 0 or said.kind == NOTHING.kind or (said.kind == EXPERT and said.expert < 0):
        tensor = get.get("tensor")
        for text in (site, tensor[:300] if isinstance(tensor, str) else ""):
            said = inside(said, scope_of(text))
    if said.kind == NOTHING.kind and (said.layer >= 0 or said.expert >= 0):
        said = Scope(said.layer, said.expert, EXPERT if said.expert >= 0 else LAYER)
    return said, site


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else None


@lru_cache(maxsize=65_536, typed=True)
def _said(layer: Any, expert: Any, word: Any) -> Scope:
    """What the fields of these names say themselves."""
    word = SCOPE_WORDS.get(word.strip().lower(), word.strip().lower()) if isinstance(word, str) else ""
    kind = SCOPES.index(word) if word in SCOPES else NOTHING.kind
    said = Scope(_number(layer, "layer"), _number(expert, "expert"), kind)
    for text in (word, layer, expert):
        if isinstance(text, str) and text not in SCOPES:
            said = inside(said, scope_of(text[:300]))
    return said


def _number(value: Any, word: str) -> int:
    """3, 3.0, "3", "layer 3" or a module path -> 3; -1 for none."""
    if isinstance(value, str) and not value.strip().isdigit():
        found = scope_of(value[:300])
        return found.layer if word == "layer" else found.expert
    return _whole(value)


def _fill(rows: _Rows, source: Source, out: Reading) -> None:
    import numpy as np

    columns, notes = rows.columns, []
    count = len(columns["is_alloc"])
    times, guessed = _times(columns["time"], columns["unit"])
    order = np.arange(count)
    table = {n: np.array(columns[n], np.int64) for n in INTEGERS}
    table["is_alloc"] = np.array(columns["is_alloc"], bool)
    if times is None:
        notes.append("the records have no time: lifetimes are counted in events")
    else:
        table["time_ns"] = np.array(times, np.int64)
        order = np.argsort(table["time_ns"], kind="stable")
        if guessed:
            notes.append(f"times without a unit were read as {guessed}")
    if all(at is not None for at, new in zip(columns["address"], columns["is_alloc"], strict=True) if new):
        table["address"] = np.array([-1 if a is None else a for a in columns["address"]], np.int64)
    by_id = _ids_match(columns)
    table["key"] = np.fromiter(_keys(columns, by_id=by_id), np.int64, count)
    if not by_id:
        notes.append(
            "frees do not name their tensor: each was paired with the oldest living one of the same "
            "layer, scope, expert and size"
        )
    for number, what in ((rows.without_size, "records without a size"), (rows.other, "other records")):
        if number:
            notes.append(f"{number} {what} left out")
    out.reader = "memory_log"
    out.notes += notes
    sites = tuple(rows.sites)
    ordered = {name: column[order] for name, column in table.items()}
    attrs = {"by_id": by_id, "notes": tuple(notes), "sites": sites}
    out.add_columns("memory_log", ordered, source=source.path, rows=count, **attrs)


def _times(values: list[Any], units: list[str]) -> tuple[array[int] | None, str]:
    """Times in ns, a missing one as the one before; None if none has a time.

    Returns:
        (times, what a time without a unit was taken for).
    """
    bare = [v for v, u in zip(values, units, strict=True) if not u and type(v) in (int, float)]
    finite = [abs(v) for v in bare if math.isfinite(v)]
    factor = guessed = 0
    if finite:
        top = max(finite)
        factor = next((f for least, f in EPOCHS if top >= least), 0)
        if not factor:
            whole = all(isinstance(v, int) or v.is_integer() for v in bare)
            guessed = factor = UNIT_NS["us" if whole else "s"]
    out = array("q")
    last: int | None = None
    for value, unit in zip(values, units, strict=True):
        now = _ns(value, UNIT_NS.get(unit, factor))
        last = last if now is None else now
        out.append(last or 0)
    names = {1_000: "microseconds", UNIT_NS["s"]: "seconds", 0: ""}
    return (None if last is None else out), names[guessed]


def _ns(value: Any, factor: int) -> int | None:
    if isinstance(value, str):
        number = _float(value) if factor else None
        value, factor = (number, factor) if number is not None else (when(value), UNIT_NS["s"])
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value * factor) < LARGEST * 8:
        return None
    return value * factor if isinstance(value, int) else round(value * factor)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _ids_match(columns: dict[str, Any]) -> bool:
    """Whether frees repeat the id of an allocation; a serial number of records does not.

    Of a log that begins late few frees match in any way; then what matches more counts.
    """
    is_alloc = columns["is_alloc"]
    by_id = _matched(columns["id"], is_alloc)
    if all(is_alloc) or by_id >= ENOUGH:
        return None not in columns["id"] or by_id > 0
    kinds = zip(*(columns[n] for n in ("layer", "scope", "expert", "size_bytes")), strict=True)
    return by_id >= _matched(list(kinds), is_alloc) and None not in columns["id"]


def _matched(values: list[Any], is_alloc: list[bool]) -> float:
    """Share of the frees whose value occurs with an allocation, too."""
    born = {v for v, new in zip(values, is_alloc, strict=True) if new and v is not None}
    freed = [v for v, new in zip(values, is_alloc, strict=True) if not new]
    return sum(v in born for v in freed) / len(freed) if freed else 0.0


def _keys(columns: dict[str, Any], *, by_id: bool) -> Iterator[int]:
    """What tells tensors apart, per rank and device, as hashes: equal ones in several files of a run."""
    names = ("rank", "device", "id", "layer", "scope", "expert", "size_bytes")
    for rank, device, identity, *rest in zip(*(columns[n] for n in names), strict=True):
        key = (rank, device, identity) if by_id and identity is not None else (rank, device, *rest)
        yield int.from_bytes(blake2b(repr(key).encode(), digest_size=7).digest())
