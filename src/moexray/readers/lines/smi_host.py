"""What stands beside nvidia-smi in a paste: /proc/meminfo, sanitizer records, query CSV, memory summaries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.core.sizes import BINARY_UNITS
from moexray.readers.shapes.smi import query_apps, query_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]


MEMINFO = lazy(r"\s*(MemTotal|MemAvailable|MemFree):\s+(\d+)\s*kB", re.IGNORECASE)
BARRED = lazy(r"=========\s?(\s*)(.*)$")
RECORD = lazy(
    r"(?:Invalid|Misaligned|Uninitialized|Program hit|Error:|Warning:|Race reported|Barrier error|Leaked"
    r"|Out-of-range|Potential|Malloc/Free|Stack overflow|Divergent)\b"
)
KERNEL = lazy(r"at (?:0x[0-9a-f]+ in )?(.+?)(?:\+0x[0-9a-f]+)?(?: in (\S+:\d+))?$")
OLD_KERNEL = lazy(r"at 0x[0-9a-f]+ in (?:(\S+:\d+):)?(.+)$")
SUMMARY = lazy(r"ERROR SUMMARY: (\d+) error")
QUERY = lazy(
    r"(?:timestamp|index|uuid|name|pci\.\w+|pid|gpu_\w+|process_name|memory\.\w+|utilization\.\w+|used_\w*memory"
    r"|clocks?[._][\w.]+|power\.\w+|temperature\.\w+|driver_version|pstate|fan\.speed|count|mig\.\S+|ecc\S+"
    r")(?: \[[\w %]+\])?"
)
DEVICE = lazy(r"PyTorch CUDA memory summary, device ID (\d+)")
COUNTS = lazy(r"CUDA OOMs:\s*(\d+).*?cuda(?:Malloc retries| retries):\s*(\d+)", re.IGNORECASE)
USAGE = lazy(r"\|\s*([A-Z][\w -]+?)\s*\|\s*(\d+)\s*((?:[KMGT]i?)?B|)\s*\|\s*(\d+)\s*((?:[KMGT]i?)?B|)\s*\|")
SUMMARY_ROWS = {
    "allocated memory": ("allocated_bytes", "allocated_peak_bytes"), "active memory": ("active_bytes", None),
    "gpu reserved memory": ("reserved_bytes", "reserved_peak_bytes"),
    "non-releasable memory": ("inactive_split_bytes", None), "gpu reserved segments": ("segments", None),
}  # fmt: skip
# torch.cuda.memory_stats() in a log: "num_ooms=0", a dict or OrderedDict as Python prints it.
STAT = lazy(
    r"\b(num_alloc_retries|num_ooms|(?:allocated|reserved)_bytes(?=\.all\.current))(?:\.all\.current)?['\"]?"
    r"\s*[,:=]\s*(\d+)\b(?!\.)"
)
NEAR_LINES = 120  # lines of one dict that is printed a key a line


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds rows of meminfo, sanitizer, memory_stats, gpu and gpu_process."""
    _meminfo(lines, out)
    _sanitizer(lines, out)
    _summary(lines, out)
    _stats(lines, out)
    _pasted(lines, out)


def _meminfo(lines: Sequence[Line], out: Reading) -> None:
    """One row for each reading of /proc/meminfo."""
    got: dict[str, int] = {}
    texts: list[str] = []
    first = 0

    def close() -> None:
        if "memtotal" in got:
            out.add(
                "meminfo",
                where=f"line {first}",
                total_bytes=got["memtotal"],
                available_bytes=got.get("memavailable"),
                free_bytes=got.get("memfree"),
                text=" ".join(texts),
            )

    for line in lines:
        if m := MEMINFO.match(line.text):
            name = m[1].lower()
            if name == "memtotal":
                close()
                got, texts, first = {}, [], line.number
            got[name] = int(m[2]) << 10
            texts.append(" ".join(line.text.split()))
    close()


def _sanitizer(lines: Sequence[Line], out: Reading) -> None:
    record: dict[str, str | None] | None = None
    number = 0
    tool: str | None = None

    def close() -> None:
        if record:
            out.add("sanitizer", where=f"line {number}", tool=tool, **record)

    for line in lines:
        m = BARRED.match(line.text)
        if not m:
            continue
        text = m[2].strip()
        if text in ("COMPUTE-SANITIZER", "CUDA-MEMCHECK"):
            tool = None if text == "COMPUTE-SANITIZER" else "memcheck"
        elif found := SUMMARY.search(text):
            close()
            record = None
            out.add("sanitizer", where=f"line {line.number}", tool=tool, what=text, count=int(found[1]))
        elif RECORD.match(text) and len(m[1]) <= 1:
            close()
            record, number = {"what": text, "kernel": None, "site": None, "detail": None}, line.number
        elif record is not None:
            _detail(text, record)
    close()


def _detail(text: str, record: dict[str, str | None]) -> None:
    if text.startswith("at ") and record["kernel"] is None:
        if (m := OLD_KERNEL.match(text)) and m[1]:
            record["site"], record["kernel"] = m[1], m[2]
        elif m := KERNEL.match(text):
            record["kernel"], record["site"] = m[1], m[2]
    elif text.startswith(("Address", "and is", "Access at")):
        record["detail"] = " ".join(p for p in (record["detail"], text) if p)


def _summary(lines: Sequence[Line], out: Reading) -> None:
    """torch.cuda.memory_summary(): only rows of the pools together."""
    row: dict[str, int] = {}
    number = 0

    def close() -> None:
        if "allocated_bytes" in row:
            out.add("memory_stats", where=f"line {number}", **row)

    for line in lines:
        text = line.text
        if m := DEVICE.search(text):
            close()
            row, number = {"device": int(m[1])}, line.number
        elif not row:
            continue
        elif m := COUNTS.search(text):
            row["num_ooms"], row["num_alloc_retries"] = int(m[1]), int(m[2])
        elif (m := USAGE.search(text)) and (names := SUMMARY_ROWS.get(m[1].lower())):
            for name, value, unit in ((names[0], m[2], m[3]), (names[1], m[4], m[5])):
                if name and name not in row:
                    row[name] = int(value) * (1 if name == "segments" else BINARY_UNITS[unit.lower()])
    close()


def _stats(lines: Sequence[Line], out: Reading) -> None:
    """Statistics of the allocator that a log prints, with the count of retries in them."""
    row: dict[str, int] = {}
    first: Line | None = None

    def close() -> None:
        if first is not None and "num_alloc_retries" in row:
            out.add("memory_stats", where=f"line {first.number}", t_s=first.t_s, rank=first.rank, **row)

    for line in lines:
        if "num_" not in line.text and "_bytes.all" not in line.text:
            continue
        for name, value in STAT.findall(line.text) if line.text[:1] not in "[{" else ():  # JSON has its shape
            far = first is not None and line.number - first.number > NEAR_LINES
            if first is None or far or name in row or line.rank != first.rank:
                close()
                row, first = {}, line
            row[name] = int(value)
    close()


def _pasted(lines: Sequence[Line], out: Reading) -> None:
    """Query tables amid other text: a header of nvidia-smi's own field names and the rows below it."""
    from moexray.readers.csv_file import Grid

    i = 0
    while i < len(lines):
        names = tuple(c.strip() for c in (lines[i].full or lines[i].text).split(","))
        if not all(QUERY.fullmatch(n) for n in names) or (len(names) == 1 and "[" not in names[0]):
            i += 1
            continue
        rows, numbers = [], []
        i += 1
        while i < len(lines):
            cells = tuple(c.strip() for c in (lines[i].full or lines[i].text).split(","))
            if len(cells) != len(names) or not any(cells):
                break
            if cells != names:
                rows.append(cells)
                numbers.append(lines[i].number)
            i += 1
        grid = Grid(names, tuple(rows), tuple(numbers))
        if rows and not query_apps(grid, None, out):
            query_gpu(grid, None, out)
