"""moexray in a notebook: what `import moexray` offers, as frames and as HTML that a cell shows.

Nothing here computes: each function calls what the command of the same name calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moexray.core.errors import MoexrayError, UsageError
from moexray.core.tables import TABLES
from moexray.diagnose import engine
from moexray.faces.given import counts, listed, path_of, texts
from moexray.faces.numbers import counted, human_fact
from moexray.faces.plain import visible
from moexray.readers.read_any import read_any

if TYPE_CHECKING:
    import polars as pl

    from moexray.core import run as core
    from moexray.core.finding import Finding

__all__ = ["Answer", "Diagnosis", "MoexrayError", "Run", "check", "compare", "diagnose", "read", "whatif"]

SHOWN = 30  # rows of a list in a cell
EVIDENCE = 3  # quotes of a finding in a cell
_COUNTED = ("capacity", "gpus", "nodes", "slots", "top_k")  # options of what-ifs
COLOURS = {"error": "#b3261e", "warn": "#9a6700", "info": "#57606a"}


# Columns whose type must not depend on what was found: names of polars types.
_INPUT = {"path": "String", "reader": "String", "rows": "Int64", "note": "String"}
_FINDING = {
    "id": "String", "severity": "String", "confidence": "Float64", "claim": "String", "value": "Float64",
    "limit": "Float64", "unit": "String", "rank": "Int64", "device": "Int64", "layer": "Int64",
    "expert": "Int64", "evidence": "List", "remedies": "List", "implied_by": "List", "settle_with": "List",
}  # fmt: skip


class _Tables(Mapping[str, "pl.DataFrame"]):
    """Table name -> polars frame, made when it is asked for."""

    def __init__(self, run: core.Run) -> None:
        self._run = run

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in {t.name for t in TABLES}:
            raise KeyError(f"{name}: no such table; docs/tables.md lists them")
        return self._run.frame(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._run.present))

    def __len__(self) -> int:
        return len(self._run.present)

    def __repr__(self) -> str:
        return f"tables: {', '.join(self) or 'none'}"


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """Everything that was read. `tables` are frames by name (docs/tables.md says what each column means)."""

    raw: core.Run
    paths: tuple[str, ...] = ()

    @property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """Tables that hold anything; any table of docs/tables.md can be asked for."""
        return _Tables(self.raw)

    @property
    def inputs(self) -> pl.DataFrame:
        """A row per file: path, reader (null where nothing was read), rows, note (why, what was mended)."""
        rows: list[tuple[str, str | None, int, str]] = [
            *((i.path, i.reader, i.rows, "; ".join(i.notes)) for i in self.raw.inputs),
            *((s.path, None, 0, s.reason) for s in self.raw.skipped),
        ]
        return _frame((dict(zip(_INPUT, row, strict=True)) for row in rows), _INPUT)

    def __repr__(self) -> str:
        return f"{counted(len(self.raw.inputs), 'file')} read, {len(self.raw.skipped)} not; {self.tables!r}"

    def _repr_html_(self) -> str:
        told = self.inputs.to_dicts()
        rows = [[r["path"], r["reader"] or "not read", f"{r['rows']:,}", r["note"]] for r in told]
        return _table(("file", "read as", "rows", ""), rows) + f"<p>{_text(repr(self.tables))}</p>"


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """What broke: `findings`, the most important first; `frame` has a row each."""

    raw: engine.Diagnosis
    paths: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings with evidence and remedies."""
        return self.raw.findings

    @property
    def verdict(self) -> str:
        """Id of the first finding, or "none"."""
        return self.raw.verdict

    @property
    def frame(self) -> pl.DataFrame:
        """A row per finding; evidence and remedies as lists of texts."""
        rows = (
            {
                "id": f.id, "severity": f.severity, "confidence": f.confidence, "claim": f.claim,
                "value": f.value, "limit": f.limit, "unit": f.unit, "rank": f.subject.rank,
                "device": f.subject.device, "layer": f.subject.layer, "expert": f.subject.expert,
                "evidence": [f"{e.source}, {e.where}: {e.text}" for e in f.evidence],
                "remedies": [r.action for r in f.remedies],
                "implied_by": list(f.implied_by), "settle_with": list(f.settle_with),
            }
            for f in self.findings
        )  # fmt: skip
        return _frame(rows, _FINDING)

    def to_json(self) -> dict[str, Any]:
        """The document `moexray.diagnosis/1`."""
        return self.raw.to_json()

    def report(self, file: str | Path, *, force: bool = False) -> Path:
        """Writes the HTML report: that of `moexray diagnose --report`.

        Raises:
            UsageError: the file exists and `force` is not given, or it cannot be written.
        """
        from moexray.faces.cli.new_file import check_new
        from moexray.faces.cli.report_file import closer_look, save_page

        path = Path(file)
        check_new(path, force=force, read=self.paths, page=True)
        document = self.to_json()
        save_page(path, document | closer_look(self.raw.run, document), self.paths)
        return path

    def __repr__(self) -> str:
        from moexray.faces.cli.screen import as_text

        return visible(as_text(self.to_json()))

    def _repr_html_(self) -> str:
        if not self.raw.run.inputs and not self.findings:
            return f"<pre>{_text(repr(self))}</pre>"
        if not self.findings:
            return "<p><b>verdict: none</b> (nothing wrong was found in what was read)</p>"
        shown = [_finding(f) for f in self.findings[:SHOWN]]
        more = len(self.findings) - len(shown)
        return "".join(shown) + (f"<p>and {more} more: see .frame</p>" if more else "")


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """A frame and the document it was taken from: what `whatif`, `compare` and `check` give.

    Args:
        frame: A row per setting, policy, layer, figure or line of a budget.
        document: The whole answer, as the command prints it with --format json.
        headline: It in a sentence.
    """

    frame: pl.DataFrame
    document: Mapping[str, Any]
    headline: str

    def __repr__(self) -> str:
        return f"{visible(self.headline)}\n{self.frame}"

    def _repr_html_(self) -> str:
        return f"<p><b>{_text(self.headline)}</b></p>{self.frame._repr_html_()}"


Source = Run | str | Path


def read(*paths: str | Path | Iterable[str | Path]) -> Run:
    """Reads files and folders: logs, snapshots, traces, counts, metrics, benchmark results.

    Files that gave nothing are in `inputs`, with the reason.

    Raises:
        UsageError: no path is given, or one is no path or does not exist.
    """
    flat = tuple(path_of(x) for p in paths for x in listed(p))
    if not flat:
        raise UsageError("nothing to read", hint='moexray.read("folder/")')
    return Run(read_any(flat), flat)


def diagnose(run: Source) -> Diagnosis:
    """Says what broke, with evidence.

    Args:
        run: What `read` gave, or a path.
    """
    known = run if isinstance(run, Run) else read(run)
    return Diagnosis(engine.diagnose(known.raw), known.paths)


def whatif(run: Source, kind: str = "memory", **options: Any) -> Answer:
    """Tries other settings on the user's own history.

    Args:
        run: What `read` gave, or a path.
        kind: "memory": allocator settings on a snapshot's history; "routing": router policies on recorded
            scores or choices; "placement": where experts should lie.
        options: memory: confs (strings of PYTORCH_ALLOC_CONF), capacity (bytes). routing: policies, top_k,
            gpus, slots, nodes. placement: gpus (wanted), slots, nodes.

    Raises:
        UsageError: no such kind, options that do not fit, or nothing of the kind was read.
    """
    kinds: dict[str, Callable[..., Answer]] = {
        "memory": _memory, "routing": _routing, "placement": _placement,
    }  # fmt: skip
    if str(kind) not in kinds:
        raise UsageError(f"there is no what-if {kind!r}", hint=f"one of {', '.join(kinds)}")
    try:
        signature(kinds[kind]).bind(None, **options)
    except TypeError as why:
        raise UsageError(f"whatif {kind}: {why}", hint="see help(moexray.whatif)") from why
    return kinds[kind](_raw(run), **counts(options, _COUNTED))


def compare(before: Source, after: Source, margin: str = "5%") -> Answer:
    """What changed between two sets of results, with intervals; see docs/ab.md.

    Args:
        before: What `read` gave, or a path.
        after: The same of the other side.
        margin: What does not matter: "5%" of before, or "5ms" for durations.
    """
    from moexray.faces.cli.ab import margin_of
    from moexray.verify.compare import compare as compared

    document = compared(_raw(before), _raw(after), margin_of(str(margin))).to_json()
    said = [o["verdict"] for o in document["outcomes"]]
    counts = ", ".join(f"{said.count(v)} {v}" for v in dict.fromkeys(said))
    return Answer(_outcomes(document["outcomes"]), document, f"{counted(len(said), 'figure')}: {counts}")


def check(run: Source, budget: str | Path, baseline: Source | None = None) -> Answer:
    """Holds results against a budget file; `document["passed"]` says whether it holds.

    Args:
        run: What `read` gave, or a path.
        budget: TOML, see docs/ab.md.
        baseline: What growth is measured from.
    """
    from moexray.verify.budget import check as checked
    from moexray.verify.budget import load_budget

    base = None if baseline is None else _raw(baseline)
    document = checked(load_budget(Path(budget)), _raw(run), base).to_json()
    headline = "the budget holds" if document["passed"] else "the budget is broken"
    return Answer(_outcomes(document["lines"]), document, headline)


def _raw(run: Source) -> core.Run:
    return run.raw if isinstance(run, Run) else read(run).raw


def _memory(run: core.Run, confs: Iterable[str] = (), capacity: int | None = None) -> Answer:
    from moexray.faces.cli.whatif_words import figures
    from moexray.whatif import allocator

    begin = time.perf_counter()
    study = allocator.study(run, allocator.Memory(capacity=capacity), allocator.Use(), texts(confs))
    document = figures(study, time.perf_counter() - begin)
    advice = document["recommendation"]
    recorded = [{**document["recorded"], "recorded": True}] if document["recorded"] else []
    rows = [*recorded, *({**s, "recorded": False} for s in document["settings"])]
    return Answer(_frame(rows), document, str(advice["line"] or advice["reason"]))


def _routing(
    run: core.Run, policies: Iterable[str] = (), *, top_k: int | None = None, gpus: int | None = None,
    slots: int | None = None, nodes: int = 1,
) -> Answer:  # fmt: skip
    from moexray.faces.cli.whatif_routing import describe

    document = describe(run, texts(policies), top_k=top_k, gpus=gpus, slots=slots, nodes=nodes)
    rows = document["policies"]
    return Answer(_frame(rows), document, f"{counted(len(rows), 'policy', 'policies')} tried")


def _placement(run: core.Run, gpus: int, slots: int | None = None, nodes: int = 1) -> Answer:
    from moexray.algorithms.placement import Shape
    from moexray.whatif.placement import Options, plan
    from moexray.whatif.traffic import traffic

    seen = traffic(run, None)
    made = plan(seen, Shape(seen.experts, slots or -(-seen.experts // gpus) * gpus, gpus, nodes), Options())
    names = ("layer", "balancedness", "bound", "trivial")
    rows = [{**{n: getattr(y, n) for n in names}, "slots": y.slots.tolist()} for y in made.layers]
    known = [r for r in rows if r["balancedness"] is not None]
    means = [sum(r[n] for r in known) / max(len(known), 1) for n in ("trivial", "balancedness")]
    headline = f"balancedness {means[0]:.3f} as engines start, {means[1]:.3f} planned (mean of layers)"
    return Answer(_frame(rows), {"layers": rows}, headline)


def _outcomes(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Outcomes with their intervals as plain columns."""
    flat = []
    for row in rows:
        out: dict[str, Any] = {}
        for key, value in row.items():
            if key in ("before", "after", "difference", "ratio"):
                part = value or {"value": None, "low": None, "high": None}
                out |= {key: part["value"], f"{key}_low": part["low"], f"{key}_high": part["high"]}
            else:
                out[key] = value
        flat.append(out)
    return _frame(flat)


def _frame(rows: Iterable[Mapping[str, Any]], types: Mapping[str, str] | None = None) -> pl.DataFrame:
    import polars as pl

    schema = None
    if types:
        schema = {n: pl.List(pl.String) if t == "List" else getattr(pl, t) for n, t in types.items()}
    return pl.DataFrame([dict(r) for r in rows], schema=schema, infer_schema_length=None, strict=False)


def _text(value: object) -> str:
    return escape(visible(str(value)))


def _table(titles: Iterable[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{_text(t)}</th>" for t in titles)
    body = "".join("<tr>" + "".join(f"<td>{_text(c)}</td>" for c in r) + "</tr>" for r in rows[:SHOWN])
    more = f"<p>and {len(rows) - SHOWN} more: see .inputs</p>" if len(rows) > SHOWN else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _finding(f: Finding) -> str:
    """One finding: claim, then proof and remedies folded away."""
    colour = COLOURS[f.severity]
    value = "" if f.value is None else f" &middot; {_text(human_fact(f.value, f.unit or ''))}"
    quotes = "".join(
        f"<li>{_text(e.source)}, {_text(e.where)}: <code>{_text(e.text)}</code></li>"
        for e in f.evidence[:EVIDENCE]
    )
    actions = "".join(f"<li>{_text(r.action)}</li>" for r in f.remedies)
    settle = "".join(f"<li>would decide: {_text(s)}</li>" for s in f.settle_with)
    head = f'<b style="color:{colour}">{_text(f.severity)}</b> <code>{_text(f.id)}</code>{value}'
    folded = f"<summary>evidence and remedies</summary><ul>{quotes}{settle}</ul><ol>{actions}</ol>"
    style = f"border-left:4px solid {colour};padding:2px 10px;margin:6px 0"
    return f'<div style="{style}">{head}<br>{_text(f.claim)}<details>{folded}</details></div>'
