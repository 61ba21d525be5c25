"""Outcomes and trials as text: `moexray ab`, `compare` and `check` print the same table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.faces.numbers import counted, human

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["check_text", "outcome_table", "span", "trial_text"]

def outcome_table(outcomes: Sequence[Mapping[str, Any]], sides: tuple[str, str]) -> list[str]:
    """One line per figure, then why no verdict is given where none is.

    Args:
        outcomes: `Outcome.to_json()`.
        sides: Titles of the two columns of values.
    """
    rows = [_cells(o) for o in outcomes]
    titles = ("figure", *sides, f"{sides[1]} - {sides[0]}", "ratio", "verdict")
    widths = [max(len(r[i]) for r in [titles, *rows]) for i in range(len(titles))]
    out = []
    for row in [titles, *rows]:
        first = row[0].ljust(widths[0])
        rest = [c.rjust(w) for c, w in zip(row[1:-1], widths[1:-1], strict=True)]
        out.append("  ".join([first, *rest, row[-1]]).rstrip())
    reasons: dict[str, list[str]] = {}
    for o in outcomes:
        if o["verdict"] == "cannot tell":
            reasons.setdefault(o["reason"], []).append(_name(o))
    for why, names in reasons.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        of = "" if len(names) == len(outcomes) else f" ({'; '.join(names[:3])}{more})"
        out.append(f"cannot tell{of}: {why}")
    return out


def span(interval: Mapping[str, Any], unit: str, *, signed: bool = False) -> str:
    """A value and the ends of its interval, in one unit: "+9.8 ms [+9.1 ms, +10.4 ms]"."""
    texts = [_number(interval[k], unit, signed=signed) for k in ("value", "low", "high")]
    return texts[0] if interval["low"] is None else f"{texts[0]} [{texts[1]}, {texts[2]}]"


def _cells(o: Mapping[str, Any]) -> tuple[str, ...]:
    unit = o["unit"]
    ratio = "" if o["ratio"] is None else span(o["ratio"], "")
    return (
        _name(o), _number(o["before"]["value"], unit), _number(o["after"]["value"], unit),
        span(o["difference"], unit, signed=True), ratio, o["verdict"],
    )  # fmt: skip


def _name(o: Mapping[str, Any]) -> str:
    return f"{o['figure']}, {o['subject']}" if o["subject"] else str(o["figure"])


def _number(value: float | None, unit: str, *, signed: bool = False) -> str:
    if value is None or value != value:  # noqa: PLR0124 (NaN)
        return "unknown"
    text = f"{value:,.3f}" if unit in ("", "ratio") else human(value, unit)
    return f"+{text}" if signed and value > 0 else text


def trial_text(d: Mapping[str, Any]) -> str:
    """The document of `moexray ab` for a terminal."""
    out = [_headline(d)]
    if r := d["rollback"]:
        failed = f", but it failed: {r['error']}" if r["error"] else ""
        out.append(f"rolled back once, after {counted(r['after_quads'], 'quad')}{failed}")
    out += ["", *outcome_table(d["outcomes"], ("A", "B"))]
    if d["with_marked"] and (moved := _moved(d)):
        out += ["", "with the marked windows:", *outcome_table(moved, ("A", "B"))]
    if d["control"]["outcomes"]:
        p50 = d["control"]["outcomes"][0]
        differs = span(p50["difference"], p50["unit"], signed=True)
        said = d["control"]["decision"]["verdict"]
        out += ["", f"control, A against A: {p50['figure']} differs by {differs}; sequential test: {said}"]
    marked = [f"{k} {v['A']} in A, {v['B']} in B" for k, v in d["marked_windows"].items()]
    if marked:
        out.append(f"windows of 100 ms set aside: {'; '.join(marked)}")
    out += [f"note: {n}" for n in d["notes"] if n != d["noise"]["refused"]]
    return "\n".join([*out, *_legend(d)])


def _moved(d: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Outcomes whose verdict hangs on the marked windows."""
    clean = {o["figure"]: o["verdict"] for o in d["outcomes"]}
    return [o for o in d["with_marked"] if o["verdict"] != clean[o["figure"]]]


def _headline(d: Mapping[str, Any]) -> str:
    verdict, decision = d["verdict"], d["decision"]
    quads = counted(decision["quads"], "quad")
    if verdict == "cannot tell":
        return f"cannot tell whether B differs from A, after {quads}"
    if verdict == "no change":
        return f"no change: B differs from A by less than the margin of {_margin(d)} ({quads})"
    name = decision["figure"]
    i, is_share = decision["intervals"][name], d["plan"]["margin"]["is_share"]
    unit = "" if is_share or name == "errors" else "s"
    amount = span(i, unit, signed=True)
    rate = f"{quads}, false alarms at most {d['plan']['alpha']:.2g}"
    return f"B is {verdict}: {name} of a turn {amount}, margin {_margin(d)} ({rate})"


def _margin(d: Mapping[str, Any]) -> str:
    m = d["plan"]["margin"]
    return f"{m['size']:.3g} of A" if m["is_share"] else human(m["size"], "s")


def _legend(d: Mapping[str, Any]) -> list[str]:
    pairs = d["outcomes"][0]["pairs"] if d["outcomes"] else 0
    over = counted(pairs, "pair")
    return ["", f"intervals: 95 %, bootstrap over {over} of turns; mean_max: the longest of a turn, mean"]


def check_text(d: Mapping[str, Any]) -> str:
    """The document of `moexray check`: broken lines first."""
    order = {"fail": 0, "cannot tell": 1, "pass": 2}
    lines = sorted(d["lines"], key=lambda x: order[x["status"]])
    width = max(len(x["budget"]) for x in lines)
    out = [f"{x['status']:<12}{x['budget']:<{width}}  {_told(x)}" for x in lines]
    broken = sum(x["status"] == "fail" for x in lines)
    last = f"{counted(broken, 'line')} of {len(lines)} broken" if broken else "no line is broken"
    if d["undecided"]:
        last += f", {len(d['undecided'])} undecided: beyond the limit, but within the scatter of the data"
    return "\n".join([*out, last, *(f"note: {n}" for n in d["notes"])])


def _told(x: Mapping[str, Any]) -> str:
    unit, of = x["unit"], f" ({x['subject']})" if x["subject"] else ""
    if x["budget"].endswith(("_growth", "_loss")):
        sides = f"{_number(x['before']['value'], unit)} -> {_number(x['after']['value'], unit)}"
        ratio = "" if x["ratio"] is None else f", ratio {span(x['ratio'], '')}"
        return f"{sides}{ratio}; allowed {x['limit']:.3g}{of}"
    return f"{span(x['after'], unit)}, limit {_number(x['limit'], unit)}{of}"
