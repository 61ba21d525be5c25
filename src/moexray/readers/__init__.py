"""Readers: one file a format. A format is a `sniff` of the first bytes and a `read` into tables.

`READERS` is walked in its order; the first whose `sniff` says yes reads the file. Containers of
many formats (text, JSON, CSV, pickle) hold their own tuple of shapes: readers/text.py,
readers/json_file.py, readers/csv_file.py, readers/pickle_file.py.

Reader modules import only the standard library and core at the top; numpy, polars, msgspec are
imported inside the functions that need them, so that one OOM line is answered at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.readers import (
    csv_file,
    inspector,
    json_file,
    npz,
    nsys,
    nsys_jsonl,
    nsys_parquet,
    pickle_file,
    placement_yaml,
    prometheus,
    safetensors,
    smi_xml,
    text,
    torch_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["READERS", "Reader"]


@dataclass(frozen=True, slots=True)
class Reader:
    """One format.

    Args:
        name: Shown under `inputs`.
        sniff: Takes the first 64 KiB after decompression; never the name of the file.
        read: Fills a Reading from a Source; raises ReadError where nothing can be read.
        suffixes: Name endings that fit the content; others give `input.name_mismatch` if they
            are the ending of another format.
    """

    name: str
    sniff: Callable[[bytes], bool]
    read: Callable[[Source, Reading], None]
    suffixes: tuple[str, ...]


READERS: tuple[Reader, ...] = (
    Reader("torch", torch_file.sniff, torch_file.read, (".pt", ".pth")),
    Reader("npz", npz.sniff, npz.read, (".npz", ".npy")),
    Reader("nsys", nsys.sniff, nsys.read, (".sqlite", ".sqlite3", ".db")),
    Reader("nsys parquet", nsys_parquet.sniff, nsys_parquet.read, (".parquet",)),
    Reader("safetensors", safetensors.sniff, safetensors.read, (".safetensors",)),
    Reader("pickle", pickle_file.sniff, pickle_file.read, (".pickle", ".pkl", ".p")),
    Reader("nsys jsonlines", nsys_jsonl.sniff, nsys_jsonl.read, (".json", ".jsonl", ".ndjson")),
    Reader("nccl inspector", inspector.sniff, inspector.read, (".json", ".jsonl", ".log")),
    Reader("json", text.sniff_json_log, text.read, (".json", ".jsonl", ".ndjson")),
    Reader("json", json_file.sniff, json_file.read, (".json", ".jsonl", ".ndjson")),
    Reader("nvidia-smi xml", smi_xml.sniff, smi_xml.read, (".xml",)),
    Reader("prometheus", prometheus.sniff, prometheus.read, (".prom", ".metrics")),
    Reader("yaml", placement_yaml.sniff, placement_yaml.read, ()),
    Reader("csv", csv_file.sniff, csv_file.read, (".csv", ".tsv")),
    Reader("text", text.sniff, text.read, (".log", ".txt", ".md", ".out", ".err")),
)
