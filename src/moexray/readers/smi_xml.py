"""XML: `nvidia-smi -q -x` of any DTD version, several documents in a row, and compute-sanitizer reports.

Parsed by tag: the document type is noticed and never fetched, entities are refused, depth and size of a
document are bounded. Unknown tags are passed over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.errors import ReadError
from moexray.core.pattern import lazy
from moexray.readers.gpu_samples import Sample, Samples, fault_of, size, when

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["read", "sniff"]

ROOTS = rb"nvidia_smi_log|ComputeSanitizerOutput|compute-sanitizer-output"
ROOT = lazy(rb"<(" + ROOTS + rb")[\s>]")
END = lazy(rb"</(?:" + ROOTS + rb")\s*>")
MAX_DOCUMENT = 64 << 20  # a node of 16 GPUs with MIG and processes gives about 1 MB
MAX_DEPTH = 64
PROLOGUE = lazy(rb"<\?xml[^>]*\?>|<!DOCTYPE[^>\[]*>")
Node = tuple[str, dict[str, str], list[Any], list[str], int]  # tag, attributes, children, texts, line

NUMBERS = (
    ("util_ratio", 0.01, "utilization/gpu_util"), ("mem_util_ratio", 0.01, "utilization/memory_util"),
    ("sm_mhz", 1, "clocks/sm_clock"), ("sm_max_mhz", 1, "max_clocks/sm_clock"),
    ("power_w", 1, "power_readings/power_draw"), ("power_w", 1, "gpu_power_readings/instant_power_draw"),
    ("power_w", 1, "gpu_power_readings/power_draw"), ("power_w", 1, "gpu_power_readings/average_power_draw"),
    ("power_limit_w", 1, "power_readings/power_limit"),
    ("power_limit_w", 1, "gpu_power_readings/current_power_limit"),
    ("power_limit_w", 1, "gpu_power_readings/power_limit"), ("temp_c", 1, "temperature/gpu_temp"),
)  # fmt: skip


def sniff(head: bytes) -> bool:
    """The root element of a known document near the start."""
    start = head.replace(b"\0", b"")[:8192].lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n")
    return start[:1] == b"<" and ROOT.search(start) is not None


def read(source: Source, out: Reading) -> None:
    """Reads every document of the file.

    Raises:
        ReadError: no document can be read, or one declares entities.
    """
    from xml.parsers import expat

    samples = Samples("xml")
    whole, failed = 0, ""
    for number, document, complete in _documents(source):
        try:
            tree = _parse(document, number)
        except expat.ExpatError as why:
            failed = (
                f"line {number + (why.lineno or 1) - 1}: {expat.ErrorString(why.code)}" if complete else "cut"
            )
            continue
        whole += 1
        if tree[0] == "nvidia_smi_log":
            _log(tree, samples, out)
        else:
            _sanitizer(tree, out)
    samples.flush(out, source.path)
    if not whole:
        reason = "it ends early" if failed == "cut" else failed
        raise ReadError(f"the XML cannot be parsed ({reason})", where=source.path, hint="record it again")
    if failed == "cut":
        text = f"the last XML document ends early; {whole} whole ones were used"
        out.problem("input.truncated", text, lost=1, values={"documents": whole})
    elif failed:
        text = f"an XML document cannot be parsed ({failed}); {whole} others were used"
        out.problem("input.truncated", text, lost=1, values={"documents": whole})


def _documents(source: Source) -> Iterator[tuple[int, bytes, bool]]:
    """Yields (first line, bytes from the root's start to its end, whether the end is there)."""
    buffer, line = b"", 1
    for piece in source.chunks():
        buffer += piece
        while m := END.search(buffer):
            yield line, buffer[: m.end()], True
            line += buffer.count(b"\n", 0, m.end())
            buffer = buffer[m.end() :]
        if len(buffer) > MAX_DOCUMENT:
            raise ReadError(f"an XML document of more than {MAX_DOCUMENT >> 20} MiB", where=source.path)
    if ROOT.search(buffer):
        yield line, buffer, False


def _parse(document: bytes, first_line: int) -> Node:
    """The tree of one document.

    Raises:
        expat.ExpatError: it is not well-formed.
        ReadError: it declares entities or is too deep.
    """
    from xml.parsers import expat

    top: Node = ("", {}, [], [], 0)
    stack = [top]
    parser = expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) > MAX_DEPTH:
            raise ReadError(f"XML nested deeper than {MAX_DEPTH} levels")
        node: Node = (tag, attributes, [], [], first_line + parser.CurrentLineNumber - 1)
        stack[-1][2].append(node)
        stack.append(node)

    def end(_tag: str) -> None:
        stack.pop()

    def text(data: str) -> None:
        stack[-1][3].append(data)

    def entity(*_: Any) -> None:
        raise ReadError("XML that declares entities: refused, nothing of it was expanded")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.EntityDeclHandler = entity
    begin = ROOT.search(document)
    prologue = document[: begin.start()] if begin else document
    if b"<!ENTITY" in prologue.upper() or b"[" in PROLOGUE.sub(b"", prologue):
        entity()
    # Text between two documents (a shell's prompt, a date) is no part of either.
    parser.Parse(b"\n" * prologue.count(b"\n") + (document[begin.start() :] if begin else b""), True)  # noqa: FBT003  # its only form
    return top[2][0] if top[2] else top


def _find(node: Node, path: str) -> Node | None:
    for tag in path.split("/"):
        found = next((c for c in node[2] if c[0] == tag), None)
        if found is None:
            return None
        node = found
    return node


def _text(node: Node, path: str) -> str:
    found = _find(node, path)
    return "".join(found[3]).strip() if found else ""


def _log(tree: Node, samples: Samples, out: Reading) -> None:
    t_s = when(_text(tree, "timestamp"))
    samples.driver = _text(tree, "driver_version") or samples.driver
    gpus = [c for c in tree[2] if c[0] == "gpu"]
    whole = _text(tree, "attached_gpus") == str(len(gpus))
    for i, gpu in enumerate(gpus):
        key = gpu[1].get("id") or _text(gpu, "uuid") or str(i)
        sample = Sample(key, i if whole else None, gpu[4])
        _memory(gpu, sample)
        for column, scale, path in NUMBERS:
            text = _text(gpu, path)
            if text and column not in sample.numbers and not (fault_of(text) and column in sample.missing):
                sample.put(column, text, scale)
        for group in ("clocks_throttle_reasons", "clocks_event_reasons"):
            for reason in (_find(gpu, group) or ("", {}, [], [], 0))[2]:
                name = re.sub(r"^clocks_(?:throttle|event)_reason_", "", reason[0])
                sample.flag(name, "".join(reason[3]))
        if name := _text(gpu, "product_name"):
            samples.names[key] = name
            if fault_of(name) in ("lost", "error"):
                sample.note("product_name", fault_of(name))
        if (mode := _text(gpu, "mig_mode/current_mig")) in ("Enabled", "Disabled"):
            samples.mig[key] = mode == "Enabled"
        samples.add(sample, t_s)
        _parts(gpu, sample, t_s, out)


def _memory(gpu: Node, sample: Sample) -> None:
    block = _find(gpu, "fb_memory_usage")
    for name in ("total", "reserved", "used", "free"):
        text = _text(block, name) if block else ""
        if text:
            sample.put(f"{name}_bytes", text)


def _parts(gpu: Node, sample: Sample, t_s: float | None, out: Reading) -> None:
    """MIG instances and processes of a card."""
    for mig in (_find(gpu, "mig_devices") or ("", {}, [], [], 0))[2]:
        total, used = size(_text(mig, "fb_memory_usage/total")), size(_text(mig, "fb_memory_usage/used"))
        if mig[0] == "mig_device" and total is not None:
            out.add(
                "mig",
                where=f"line {mig[4]}",
                device=sample.device,
                key=sample.key,
                instance=_whole(_text(mig, "gpu_instance_id")),
                compute=_whole(_text(mig, "compute_instance_id")),
                index=_whole(_text(mig, "index")),
                total_bytes=int(total),
                used_bytes=None if used is None else int(used),
            )
    for process in (_find(gpu, "processes") or ("", {}, [], [], 0))[2]:
        if process[0] == "process_info":
            used = size(_text(process, "used_memory"))
            out.add(
                "gpu_process",
                where=f"line {process[4]}",
                t_s=t_s,
                device=sample.device,
                key=sample.key,
                instance=_whole(_text(process, "gpu_instance_id")),
                pid=_whole(_text(process, "pid")),
                kind=_text(process, "type"),
                name=_text(process, "process_name"),
                used_bytes=None if used is None else int(used),
            )


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _sanitizer(tree: Node, out: Reading) -> None:
    """Records of compute-sanitizer --xml: each <record> with its <what> and its frames."""
    for record in (c for c in tree[2] if c[0] == "record"):
        frame = _first_frame(record)
        out.add(
            "sanitizer",
            where=f"line {record[4]}",
            tool=_text(record, "kind") or None,
            what=_text(record, "what/text") or _text(record, "what"),
            kernel=_text(frame, "func") or None if frame else None,
            site=":".join(p for p in (_text(frame, "file"), _text(frame, "line")) if p) or None
            if frame
            else None,
            detail=_text(record, "auxwhat") or None,
        )
    if not any(c[0] == "record" for c in tree[2]):
        out.add("sanitizer", where="line 1", what="no record", count=0)


def _first_frame(node: Node, depth: int = 0) -> Node | None:
    if node[0] == "frame":
        return node
    if depth > MAX_DEPTH:
        return None
    return next((f for c in node[2] if (f := _first_frame(c, depth + 1))), None)
