"""JSON that may be damaged: repaired where only one reading exists, counted, named.

The way: a fast decoder first; then JSON lines; then a recovering parser (readers/json_recover.py)
that goes down to the records, mends what has one reading (readers/json_mend.py) and drops the rest.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from moexray.core.errors import LimitError, ReadError
from moexray.core.pattern import lazy
from moexray.core.source import BOMS
from moexray.readers.json_mend import Repairs, mend
from moexray.readers.json_recover import Recovery

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["load", "parse", "report", "to_text"]

MAX_OBJECTS_BYTES = 768 << 20  # what the decoded objects may take (1 GiB in all is the bar)
STARTS = 20  # lines that tell whether a text is JSON lines
MAX_MEND_BYTES = 256 << 20  # larger damaged documents are refused: text and bytes are held at once
LONE = lazy(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def load(source: Source, out: Reading) -> Any:
    """The document of a JSON or JSON-lines file; a list of values for JSON lines and for several documents.

    Raises:
        LimitError: its objects would not fit into memory.
        ReadError: nothing could be read.
    """
    data = source.data()
    _check_size(data, source.path)
    if not data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        fast = _fast(data)
        if fast is not None:
            return fast[0]
        if _too_deep(data):
            raise LimitError("its brackets are nested too deep to read", where=source.path,
                             hint="counts need three levels: steps, layers, experts")  # fmt: skip
    if len(data) > MAX_MEND_BYTES:
        raise LimitError(
            f"invalid JSON of more than {MAX_MEND_BYTES >> 20} MiB", where=source.path, hint="split the file"
        )
    text, repairs, encoding = to_text(data)
    if encoding != "utf-8":
        out.problem(
            "input.encoding",
            f"the text is {encoding}, not plain UTF-8; it was read as such",
            values={"encoding": encoding},
        )
    document, more = parse(text)
    repairs.add(more)
    report(repairs, out)
    if document is None:
        raise ReadError("invalid JSON: no whole record in it", where=source.path, hint="record it again")
    return document


def parse(text: str) -> tuple[Any, Repairs]:
    """Parses text that may be damaged.

    Returns:
        (document, repairs): document is None where no whole record was found; a list for JSON
        lines and for several documents behind each other.
    """
    fast = _fast(text.encode("utf-8", "replace"))
    if fast is not None:
        return fast[0], Repairs()
    if "}{" in text and (fast := _fast(text.replace("}{", "}\n{").encode("utf-8", "replace"))):
        return fast[0], Repairs()  # inside a string the line feed would be no JSON
    clean, lone = LONE.subn(r"\\ufffd", text)
    if (rows := _lines(clean)) is not None:
        document, repairs = rows
    else:
        recovery = Recovery(clean)
        document, repairs = recovery.documents(), recovery.repairs
        if repairs.dropped and (whole := _whole(clean)) is not None:
            document, repairs = whole
    repairs.strings += lone
    return document, repairs


def report(repairs: Repairs, out: Reading, *, end_mark_optional: bool = False) -> None:
    """Turns repairs into problems of the file.

    Args:
        repairs: What was done.
        out: Where the problems go.
        end_mark_optional: A missing closing bracket is no fault of this format.
    """
    if repairs.count or repairs.dropped:
        parts = [
            f"{n} {what}"
            for n, what in (
                (repairs.tokens, "bare words (inf, nan, N/A and the like) read as missing"),
                (repairs.strings, "strings with raw control characters, bad escapes or odd quotes"),
                (repairs.commas, "commas or values missing or too many"),
                (repairs.bytes, "places with bytes that are no text"),
                (repairs.dropped, "records dropped because they have no single reading"),
            )
            if n
        ]
        names = f": {', '.join(repairs.named)}" if repairs.named else ""
        out.problem(
            "input.json_repaired",
            "; ".join(parts) + names,
            lost=repairs.dropped,
            values={"repairs": repairs.count, "bad_tokens": repairs.tokens or None,
                    "dropped": repairs.dropped},
        )
    if repairs.end == "record" or (repairs.end == "mark" and not end_mark_optional):
        cut = "inside a record" if repairs.end == "record" else "before its closing brackets"
        out.problem(
            "input.truncated",
            f"the JSON ends {cut}; {repairs.records} whole records were read",
            where=f"offset {repairs.offset}",
            lost=None,
            values={"records": repairs.records, "offset": repairs.offset},
        )


def to_text(data: bytes) -> tuple[str, Repairs, str]:
    """Decodes the bytes of a JSON file.

    Returns:
        (text, repairs, encoding): bytes that are no UTF-8 became U+FFFD and are counted.
    """
    repairs = Repairs()
    for bom, name in BOMS:
        if data.startswith(bom):
            plain = "utf-8" if name == "utf-8-sig" else name
            return data[len(bom) :].decode(plain, "replace"), repairs, name
    if b"\0" in data[:4096] and data[1:4096:2].count(0) > 0.4 * len(data[1:4096:2]):
        return data.decode("utf-16-le", "replace"), repairs, "utf-16-le"
    if b"\0" in data:
        repairs.bytes += data.count(b"\0")
        data = data.replace(b"\0", b" ")  # not glued: 12\x0034 is not 1234
    try:
        return data.decode("utf-8"), repairs, "utf-8"
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    repairs.bytes += max(1, len(re.findall("\ufffd+", text)))
    return text, repairs, "utf-8"


def _too_deep(data: bytes) -> bool:
    import msgspec

    try:
        msgspec.json.decode(data)
    except RecursionError:
        return True
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return False


def _fast(data: bytes) -> tuple[Any] | None:
    """The document in a 1-tuple, None if it is not plain JSON or JSON lines."""
    import msgspec

    try:
        return (msgspec.json.decode(data),)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    first = data.lstrip()[:1]
    if first not in (b"{", b"[") or b"\n" not in data:
        return None
    try:
        rows = msgspec.json.Decoder().decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return (rows,)


def _whole(text: str) -> tuple[Any, Repairs] | None:
    """The whole document mended at once (a Python literal, a lost comma between keys)."""
    mended = mend(text, len(text) - len(text.lstrip()), len(text))
    if mended is None or text[mended.end :].strip():
        return None
    return mended.value, mended.repairs


def _check_size(data: bytes, path: str) -> None:
    """Refuses what would not fit: a small dict takes ~230 bytes, a list ~70, a value ~40."""
    if len(data) < (16 << 20):
        return
    need = len(data) + 230 * data.count(b"{") + 70 * data.count(b"[") + 40 * data.count(b",")
    if need > MAX_OBJECTS_BYTES:
        raise LimitError(
            f"its JSON would take about {need >> 20} MiB of objects",
            where=path,
            hint="give a shorter capture, or split the file",
        )


def _stands_alone(line: str, comma: str = ",") -> bool:
    """Whether a line is a whole document, damaged or not; a comma may follow."""
    if line.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        mended = mend(line, len(line) - len(line.lstrip()), len(line))
        return mended is not None and not line[mended.end :].strip(" \t" + comma)
    return True


def _lines(text: str) -> tuple[list[Any], Repairs] | None:
    """JSON lines with damaged lines; None if the first lines are no whole documents."""
    lines = text.splitlines()
    starts = [x for x in lines[:STARTS] if x.strip()]
    if len(lines) < 2 or not starts:
        return None
    if not _stands_alone(starts[0]):  # a cut first line; not so the first line of one long document
        rest = starts[1:]
        cut = starts[0].startswith("{") and not starts[0].rstrip().endswith(("{", "[", ","))
        if not (cut and rest) or sum(_stands_alone(x, comma="") for x in rest) * 2 < len(rest):
            return None
    filled = [(i, x.strip()) for i, x in enumerate(lines, 1) if x.strip()]
    if sum(x[:1] in "{[" for _, x in filled) < 0.5 * len(filled):
        return None
    repairs = Repairs()
    rows: list[Any] = []
    for place, (number, line) in enumerate(filled):
        try:
            rows.append(_DECODER.decode(line))
            continue
        except (ValueError, RecursionError):
            mended = mend(line, 0, len(line))
        if mended is not None and not line[mended.end :].strip(" \t,"):
            rows.append(mended.value)
            repairs.add(mended.repairs)
            repairs.name(number, mended.value)
        elif place == len(filled) - 1 and not text.endswith("\n"):
            repairs.end, repairs.offset = "record", len(text)
        else:
            repairs.dropped += 1
            repairs.name(number, None, " dropped")
    repairs.records = len(rows)
    return rows, repairs


def _strict(name: str) -> None:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_strict)
