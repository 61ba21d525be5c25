"""Builds small inputs of devices and reads them."""

from pathlib import Path

from moexray.core.limits import Limits
from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources

DATA = Path(__file__).parent / "data" / "smi"
MIB = 1 << 20
GIB = 1 << 30
LIMITS = Limits()


def read(*texts, names=()):
    """A Run of texts, named a.txt, b.txt, ... or as given."""
    given = [*names, *(f"{chr(97 + i)}.txt" for i in range(len(names), len(texts)))]
    raw = [t if isinstance(t, bytes) else t.encode() for t in texts]
    return read_sources(Source(n, content=t) for n, t in zip(given, raw, strict=True))


def sample(name):
    return read((DATA / name).read_text(encoding="utf-8"), names=(name,))


def findings(*texts, names=()):
    """id -> finding of a diagnosis of the texts."""
    return {f.id: f for f in diagnose(read(*texts, names=names)).findings}


def rows(run, table="gpu"):
    """Rows of an array table as dicts, unknown numbers left out."""
    out = []
    for batch in run.batches(table):
        for i in range(len(batch.columns["key"])):
            row = {k: v[i] for k, v in batch.columns.items()}
            out.append({k: v for k, v in row.items() if v == v})  # noqa: PLR0124 (NaN)
    return out


def stamp(i, step_s=10.0):
    s = i * step_s
    return f"2026/03/01 {int(s // 3600):02d}:{int(s % 3600 // 60):02d}:{s % 60:06.3f}"


def query(samples, header="timestamp, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]", step_s=10.0):
    """CSV of samples given as tuples of cells after the time."""
    lines = [header]
    lines += [", ".join((stamp(i, step_s), *map(str, s))) for i, s in enumerate(samples)]
    return "\n".join(lines) + "\n"
