"""The memory map: runs of each segment for the drawing script, and a table of the segments."""

from collections.abc import Sequence
from typing import Any

from moexray.faces.numbers import human
from moexray.faces.report.charts import Chart
from moexray.faces.report.fields import Fields, each, listed, named, number, whole
from moexray.faces.report.safe import fold
from moexray.faces.report.tables import Table, table

__all__ = ["maps"]

_MAX_SEGMENTS = 2000
_MAX_RUNS = 20_000
_MAX_SITES = 6  # as many as there are colours
_TABLE_SEGMENTS = 500
_KINDS = ("live", "pending", "stuck", "cached")
_SIZES = {
    "bytes": "Size", "active_bytes": "Live", "free_bytes": "Free", "stuck_bytes": "Stuck",
    "largest_free_bytes": "Largest free",
}  # fmt: skip


def maps(document: Fields) -> tuple[Chart, ...]:
    """Give a map for each device that has at least one segment with a run."""
    charts = (_map(fields) for fields in each(document, "memory_map"))
    return tuple(chart for chart in charts if chart is not None)


def _map(fields: Fields) -> Chart | None:
    segments = each(fields, "segments")[:_MAX_SEGMENTS]
    kinds = [_KINDS.index(k) if k in _KINDS else _KINDS.index("cached") for k in listed(fields, "kinds")]
    sites = each(fields, "sites")[:_MAX_SITES]
    runs = [_run(run, len(segments), kinds, len(sites)) for run in listed(fields, "runs")[:_MAX_RUNS]]
    known = sorted((run for run in runs if run is not None), key=lambda run: run[0])
    if not known:
        return None
    title = str(fold(fields.get("name") or "(unnamed device)", at=120))
    data = {
        "kinds": list(_KINDS),
        "sites": [[str(fold(s.get("site"), at=120)), number(s.get("bytes"))] for s in sites],
        "segments": [_words(segment) for segment in segments],
        "runs": known,
    }
    return Chart(title, _note(fields, segments), _rows(segments), data)


def _run(run: Any, segments: int, kinds: list[int], sites: int) -> list[float] | None:
    """[segment, bytes, kind, site] of a run that is drawn; None for anything else."""
    if not isinstance(run, (list, tuple)) or len(run) != 4:
        return None
    segment, kind, site = whole(run[0]), whole(run[2]), whole(run[3])
    size = number(run[1])
    if segment is None or not 0 <= segment < segments or size is None or size <= 0:
        return None
    if kind is None or not 0 <= kind < len(kinds):
        return None
    return [segment, size, kinds[kind], site if site is not None and 0 <= site < sites else -1]


def _words(segment: Fields) -> str:
    """What the reader is told of a segment under the pointer."""
    live, stuck = number(segment.get("active_bytes")), number(segment.get("stuck_bytes"))
    parts = [
        f"{_address(segment)}, {human(number(segment.get('bytes')), 'bytes')} {_pool(segment)}",
        f"{human(live, 'bytes')} live in {human(number(segment.get('live_blocks')), 'count')} blocks",
        f"{human(stuck, 'bytes')} stuck" if stuck else "",
    ]
    return ", ".join(part for part in parts if part)


def _address(segment: Fields) -> str:
    address = whole(segment.get("address"))
    return "address unknown" if address is None else f"{address:#x}"


def _pool(segment: Fields) -> str:
    stream = whole(segment.get("stream"))
    parts = [str(fold(segment.get(key), at=40)) for key in ("kind", "pool")]
    return ", ".join([" / ".join(p for p in parts if p), *([f"stream {stream}"] if stream else [])])


def _note(fields: Fields, segments: Sequence[Fields]) -> str:
    notes = [f"From {fold(fields.get('source'), at=200)}" if fields.get("source") else ""]
    total = whole(fields.get("segments_total"))
    if total is not None and total > len(segments):
        size = sum(number(segment.get("bytes")) or 0 for segment in segments)
        of = human(number(fields.get("total_bytes")), "bytes")
        notes.append(
            f"thinned: the {len(segments):,} largest of {total:,} segments, {human(size, 'bytes')} of {of}"
        )
    cut = number(fields.get("merged_below_bytes"))
    if cut:
        blocks = human(number(fields.get("blocks")), "count")
        notes.append(
            f"thinned: of {blocks} blocks, those below {human(cut, 'bytes')} are drawn sorted by state within"
            " as many bytes; areas stay true"
        )
    text = "; ".join(note for note in notes if note)
    return f"{text}." if text else ""


def _rows(segments: Sequence[Fields]) -> Table:
    def stuck_first(segment: Fields) -> tuple[float, float]:
        return -(number(segment.get("stuck_bytes")) or 0), -(number(segment.get("bytes")) or 0)

    rows = [
        (
            _address(segment),
            _pool(segment),
            *(human(number(segment.get(key)), "bytes") for key in _SIZES),
            human(number(segment.get("live_blocks")), "count"),
            named(segment, "held_by"),
        )
        for segment in sorted(segments, key=stuck_first)
    ]
    head = ("Segment", "Pool", *_SIZES.values(), "Live blocks", "Largest block by")
    caption = "segments, most stuck bytes first"
    return table(caption, head, rows, numeric=range(2, 8), limit=_TABLE_SEGMENTS)
