"""`moexray whatif policies`: the same stream of requests under other placement policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.core.json_text import json_text
from moexray.faces.cli.new_file import check_new
from moexray.faces.cli.refuse import check_paths, refusing
from moexray.faces.cli.say import say
from moexray.faces.cli.size_option import SizeOption
from moexray.faces.numbers import human

if TYPE_CHECKING:
    from moexray.faces.bars import Bar
    from moexray.whatif.policies import Stream, Trial
    from moexray.whatif.recordings import Recording

    Case = tuple[Recording, Stream, list[Trial]]

__all__ = ["command"]

TITLES = (
    f"{'policy':<20}{'peak':>12}{'over live':>11}{'ratio at peak':>15}{'at end':>8}"
    f"{'waste':>12}{'failed':>8}{'events/s':>11}{'bytes/s':>13}"
)
LEGEND = (
    "  peak: address space (PyTorch: reserved bytes) needed; over live: peak / most bytes alive at once;",
    "  ratio: 1 - largest free / free bytes; waste: bytes given beyond those asked, at the peak; speeds:",
    "  CPU time of the plain Python statement of each policy, to compare them with each other",
)
NO_LIMIT = (
    "  pytorch needs more here than was recorded: without a limit it never gives cached memory back;",
    "  --capacity SIZE sets the limit that it had",
)


@click.command("policies")
@click.argument("paths", nargs=-1, required=True, metavar="SNAPSHOT|TRACE...")
@click.option("--capacity", type=SizeOption(),
              help="Bytes that a policy may use, e.g. 78GiB.  [default: no limit]")  # fmt: skip
@click.option("--events", "most", type=click.IntRange(min=1), default=100_000, show_default=True,
              help="Requests and frees that are used at most, from the start.")  # fmt: skip
@click.option("--policy", "only", multiple=True, help="Just this policy; repeatable.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path),
              help="Write a picture here (SVG).")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite the picture.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    paths: tuple[str, ...], *, capacity: int | None, most: int, only: tuple[str, ...],
    picture: Path | None, force: bool, form: str,
) -> None:
    """Replay the requests in SNAPSHOT or TRACE under other ways of placing memory.

    First, next, best and worst fit, buddies, TLSF, size classes, an arena for each step, and
    PyTorch's own allocator serve the same requests, each from an empty space. It tells whether a
    layout of another kind would need less memory; which PyTorch setting to use tells `whatif memory`.
    """
    with refusing():
        check_paths(paths)
        check_new(picture, force=force, read=paths)
        cases = _cases(paths, capacity, most, only)
        if picture is not None:
            picture.write_text(_picture(cases), encoding="utf-8")
            say(f"written: {picture}", err=True)
    say(_json(cases, capacity) if form == "json" else _text(cases, capacity))


def _cases(paths: tuple[str, ...], capacity: int | None, most: int, only: tuple[str, ...]) -> list[Case]:
    from moexray.readers.read_any import read_any
    from moexray.whatif import policies
    from moexray.whatif.recordings import recordings

    known = policies.names()
    for name in only:
        if name not in known:
            raise UsageError(f"--policy: there is no policy {name}", hint=f"one of {', '.join(known)}")
    out = []
    for recording in recordings(read_any(paths)):
        stream = policies.stream_of(recording, most)
        out.append((recording, stream, policies.compare(stream, capacity, only)))
    return out


def _json(cases: list[Case], capacity: int | None) -> str:
    from moexray.algorithms.blocks import MIN_BLOCK

    document = {
        "schema": "moexray.whatif.policies/1",
        "capacity_bytes": capacity,
        "alignment_bytes": MIN_BLOCK,
        "cases": [
            {
                "source": recording.source,
                "device": recording.device,
                "rank": recording.rank,
                "events": trials[0].events,
                "live_peak_bytes": stream.live_peak,
                "recorded_peak_reserved_bytes": stream.recorded_peak,
                "notes": _notes(recording),
                "policies": [_row(stream, t) for t in trials],
            }
            for recording, stream, trials in cases
        ],
    }
    return json_text(document)


def _row(stream: Stream, t: Trial) -> dict[str, Any]:
    return {
        "policy": t.name,
        "peak_bytes": t.peak,
        "peak_over_live": t.peak / stream.live_peak if stream.live_peak else None,
        "fragmentation_ratio_at_peak": t.ratio_at_peak,
        "fragmentation_ratio_at_end": t.ratio_at_end,
        "live_bytes_at_peak": t.live_at_peak,
        "internal_waste_bytes_at_peak": t.waste_at_peak,
        "internal_waste_share": t.waste_share,
        "failures": t.failures,
        "failed_bytes": t.failed_bytes,
        "fallbacks": t.fallbacks,
        "cpu_s": t.cpu_s,
        "events_per_s": t.events_per_s,
        "served_bytes_per_s": t.bytes_per_s,
    }


def _text(cases: list[Case], capacity: int | None) -> str:
    out = []
    for recording, stream, trials in cases:
        limit = "without limit (--capacity)" if capacity is None else human(capacity, "bytes")
        live = f"at most {human(stream.live_peak, 'bytes')} alive at once"
        if stream.recorded_peak:
            live += f", {human(stream.recorded_peak, 'bytes')} reserved when recorded"
        out.append(f"{_place(recording)}: {trials[0].events:,} requests and frees")
        out += [f"  {live}; space: {limit}", *(f"  note: {n}" for n in _notes(recording)), "", TITLES]
        for t in trials:
            over = f"{t.peak / stream.live_peak:.3f}" if stream.live_peak else "-"
            sizes = f"{human(t.peak, 'bytes'):>12}{over:>11}{t.ratio_at_peak:>15.3f}{t.ratio_at_end:>8.3f}"
            speed = f"{t.events_per_s:>11,.0f}{human(t.bytes_per_s, 'bytes') + '/s':>13}"
            out.append(f"{t.name:<20}{sizes}{human(t.waste_at_peak, 'bytes'):>12}{t.failures:>8}{speed}")
        pytorch = max((t.peak for t in trials if t.name == "pytorch"), default=0)
        if capacity is None and stream.recorded_peak and pytorch > stream.recorded_peak:
            out += NO_LIMIT
        out.append("")
    return "\n".join([*out, *LEGEND])


def _place(recording: Recording) -> str:
    device = f"device {recording.device}" if recording.device >= 0 else "host"
    return f"{recording.source}, {device}"


def _notes(recording: Recording) -> list[str]:
    from moexray.whatif.profiles import CANNOT_KNOW

    return [*CANNOT_KNOW.get(recording.kind, ())[1:], *recording.notes]


def _picture(cases: list[Case]) -> str:
    """The first case as bars: what is alive, wasted inside blocks, and free when the peak is reached."""
    from moexray.faces.bars import picture

    recording, stream, trials = cases[0]
    where = Path(_place(recording)).name
    more = f" (first of {len(cases)})" if len(cases) > 1 else ""
    legend = ("asked for and alive", "waste inside blocks", "free (holes, cached)")
    mark = (float(stream.live_peak), f"most alive at once: {human(stream.live_peak, 'bytes')}")
    return picture(f"Memory at the peak: {where}{more}", legend, [_bar(t) for t in trials], mark)


def _bar(t: Trial) -> Bar:
    from moexray.faces.bars import Bar

    free = max(t.peak - t.live_at_peak - t.waste_at_peak, 0)
    failed = f", {t.failures:,} failed" if t.failures else ""
    parts = (float(t.live_at_peak), float(t.waste_at_peak), float(free))
    return Bar(t.name, parts, f"{human(t.peak, 'bytes')}{failed}")
