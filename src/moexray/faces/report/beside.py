"""What an experiment or a closer look added to a diagnosis: settings tried, the longest gaps."""

from dataclasses import dataclass

from moexray.faces.numbers import human
from moexray.faces.report.fields import Fields, each, named, number, whole
from moexray.faces.report.safe import clean, fold
from moexray.faces.report.tables import Table, table

__all__ = ["Trials", "gaps", "trials"]

_SHOWN = 15


@dataclass(frozen=True, slots=True)
class Trials:
    """Allocator settings replayed on the user's history, with the line to set, if there is one."""

    table: Table
    line: str
    reason: str
    caveats: tuple[str, ...]
    checked: str


def trials(document: Fields) -> Trials | None:
    """Give the `whatif` of the document (`moexray.whatif.memory/1`); None without a setting in it."""
    whatif = document.get("whatif")
    if not isinstance(whatif, dict):
        return None
    settings = each(whatif, "settings")
    if not settings:
        return None
    advice = whatif.get("recommendation")
    advice = advice if isinstance(advice, dict) else {}
    rows = [
        (
            _setting(s, advice.get("conf")),
            human(number(s.get("peak_reserved_bytes")), "bytes"),
            human(number(s.get("stuck_bytes")), "bytes"),
            human(number(s.get("min_capacity_bytes")), "bytes"),
            human(number(s.get("ooms")), "count"),
            human(number(s.get("retries")), "count"),
        )
        for s in settings
    ]
    head = ("Setting", "Peak reserved", "Stuck at the end", "Fits in", "OOMs", "Retries")
    notes = advice.get("caveats")
    return Trials(
        table("Settings replayed on this history, best first", head, rows, range(1, 6), limit=_SHOWN),
        named(advice, "line"),
        str(fold(advice.get("reason"))),
        tuple(str(fold(note)) for note in notes) if isinstance(notes, list) else (),
        _checked(whatif.get("self_check")),
    )


def _setting(trial: Fields, advised: object) -> str:
    words = named(trial, "conf") or "PyTorch's defaults"
    if trial.get("recorded"):
        return f"as recorded ({words})"
    return f"► {words}" if advised is not None and trial.get("conf") == advised else words


def _checked(check: object) -> str:
    if not isinstance(check, dict) or not check.get("applicable"):
        return ""
    parts = [
        f"{human(number(part.get('matched')), 'count')} of {human(number(part.get('total')), 'count')} "
        + name.replace("_", " ")
        for name, part in check.items()
        if isinstance(part, dict)
    ]
    return clean("The replay of the recorded settings agrees with the recording in " + ", ".join(parts) + ".")


def gaps(document: Fields) -> Table | None:
    """Give the longest idle gaps with what they waited for; None without any."""
    rows = [_gap(g) for g in each(document, "gaps")]
    waited = ("What the host did", "What the device waited for", "Unexplained", "Kernel that came late")
    head = ("Rank", "Stream", "Step", "Idle", *waited)
    return table("Longest idle gaps, longest first", head, rows, (0, 1, 2, 3, 6)) if rows else None


def _gap(g: Fields) -> tuple[str, ...]:
    at = [whole(g.get(name)) for name in ("rank", "stream", "step")]
    return (
        *("" if n is None else f"{n:,}" for n in at),
        human(number(g.get("dur_ns")), "ns"),
        _parts(g.get("host")),
        _parts(g.get("device")),
        human(number(g.get("unexplained_ns")), "ns"),
        str(fold(g.get("before"), at=56)),
    )


def _parts(parts: object) -> str:
    """The three largest, in words."""
    if not isinstance(parts, dict):
        return ""
    known = [(size, str(name)) for name, value in parts.items() if (size := number(value))]
    known.sort(key=lambda part: -part[0])
    return ", ".join(f"{clean(name).replace('_', ' ')} {human(size, 'ns')}" for size, name in known[:3])
