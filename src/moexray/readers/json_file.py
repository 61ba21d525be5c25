"""JSON and JSON lines: parsed once (tolerantly), then offered to the shapes.

A *shape* looks at a parsed document and, if it is its own, fills the tables. Kineto traces do not
come this way when they are sound: readers/kineto.py reads them typed and fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.errors import ReadError
from moexray.core.pattern import lazy
from moexray.core.source import decode
from moexray.readers import kineto, text
from moexray.readers.lines.container import log_records
from moexray.readers.lines.line import Cleaner
from moexray.readers.shapes import first_that_takes, sample
from moexray.readers.shapes.launch_json import launch_json, model_shape
from moexray.readers.shapes.no_records import configuration, own_document
from moexray.readers.shapes.routing import no_layers

if TYPE_CHECKING:

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["SHAPES", "read", "sniff"]

# Each takes (document, source, out) and returns whether the document was its own. JSON lines
# arrive as a list of objects. First yes wins.
SHAPES: tuple[str, ...] = (
    "moexray.readers.kineto:from_document",
    "moexray.readers.shapes.snapshot:shape",
    "moexray.readers.shapes.flight:read",
    "moexray.readers.shapes.memory_log:memory_log",
    "moexray.readers.shapes.memory_stats:memory_stats",
    "moexray.readers.shapes.ras_json:ras_json",
    "moexray.readers.inspector:inspector_json",
    "moexray.readers.shapes.nsys_stats:stats_json",
    "moexray.readers.shapes.iterations:iteration_json",
    "moexray.readers.shapes.matrix:read_json",
    "moexray.readers.shapes.groups:read",
    "moexray.readers.shapes.prom_json:prom_json",
    "moexray.readers.shapes.step_log:step_json",
    "moexray.readers.shapes.routing:read_json",
    "moexray.readers.shapes.requests:token_json",
    "moexray.readers.shapes.accesses:access_json",
    "moexray.readers.shapes.numerics:logprob_json",
    "moexray.readers.shapes.evals:harness_json",
    "moexray.readers.shapes.numerics:score_json",
    "moexray.readers.shapes.latency:latency_json",
    "moexray.readers.shapes.bench_json:bench_json",
    "moexray.readers.shapes.smi:query_json",
    "moexray.readers.shapes.latency:guess_json",
)


# A line of numbers in brackets; "[0] text" and "[1,0]<stdout>" open log lines, not arrays.
NUMBERS = lazy(rb"\[\s*(?:-?[0-9.][0-9.eE+-]*\s*,\s*)*-?[0-9.][0-9.eE+-]*\s*(?:\]\s*(?:[,\]]|$)|,?$)")


TOML = lazy(rb"\[\[[A-Za-z][\w. -]*\]\][ \t\r]*(?:\n|$)")  # a lock file opens so


def sniff(head: bytes) -> bool:
    """An object or array that goes on like JSON (a log line may start with a bracket, too)."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        head = decode(head[:4096])[0].encode()
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:400]
    rest = start[1:].lstrip()
    if start[:1] == b"{":
        return rest[:1] in (b'"', b"}", b"'", b"")
    if start[:1] == b"[":
        nested = rest[:1] == b"[" and not TOML.match(start)
        return nested or rest[:1] in (b"{", b"]", b'"') or NUMBERS.match(start) is not None
    return False


def read(source: Source, out: Reading) -> None:
    """Parses the document and gives it to the first shape that knows it.

    JSON of no known shape is given to the line parsers: it may carry messages (a JSON log, an
    error body).
    """
    from moexray.readers.tolerant_json import load

    if kineto.looks_like_trace(source.head) and kineto.read(source, out):
        return
    document = load(source, out)
    if reason := own_document(document):
        raise ReadError(reason, where=source.path)
    model_shape(document, out)
    if first_that_takes(SHAPES, document, source, out):
        return
    repairs, out.problems = out.problems, []
    part = sample(document)
    launch_json(part, out)
    if records := log_records(part) and log_records(document):
        text.parse_lines(list(Cleaner("").lines(enumerate(records, 1))), out, "")
    else:
        text.read(source, out)
    if not out.rows:
        out.problems = repairs
        if reason := configuration(document):
            raise ReadError(reason, where=source.path)
        if reason := no_layers(document):
            raise ReadError(reason, where=source.path, hint="record while the engine serves tokens")
        raise ReadError("JSON of no known shape", where=source.path, hint="see docs/capture.md")
