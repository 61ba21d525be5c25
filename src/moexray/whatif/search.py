"""Tries allocator settings on recorded histories: a grid first, then the neighbours of the best.

Glossary: a *case* is one recording made ready; *kept* is a replay that starts from the segments that
existed when the recording began, as they lay; *restarted* one in which the blocks that lived then are
allocated afresh under the setting, as after a restart; a *trial* is one setting on all cases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from moexray.algorithms import conf
from moexray.algorithms.blocks import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moexray.algorithms.replay import Check
    from moexray.algorithms.simulate import Outcome
    from moexray.whatif.recordings import Recording
    from moexray.whatif.streams import Stream

__all__ = ["Case", "Trial", "fitted", "grid", "measured", "named", "neighbours", "ranked", "search", "spread"]

_T = TypeVar("_T")
MIB = 1 << 20
LARGE_SEGMENT_SINCE = ("2.8+", "2.12+")  # files of these may be of a torch with large_segment_size_mb (2.11)
SPLITS = (32, 64, 128, 256, 512, 1024)  # MiB
DIVISIONS = (2, 4, 8, 16)
LARGE = (12, 20, 40, 64)  # MiB
ROUNDINGS = (64, 128, 256)  # MiB
SHARES = (0.6, 0.7, 0.8, 0.9)
ROUNDS = 2  # of local search
BEAM = 2  # best trials whose neighbours are tried
BUSY = 4  # size classes whose rounding is tried one by one
# Steps of replay that the trials of one search may take, and the search of smallest capacities again:
# about ten seconds each at the pace of the compiled twin.
BUDGET = 60_000_000
FIT_RUNS = 10  # replays that find one smallest capacity
FITTED = 8  # best trials whose smallest capacity is searched in any case
PRICE = 100  # an option must save 1/100 of the live peak


@dataclass(frozen=True, slots=True)
class Case:
    """A recording made ready.

    Args:
        recording: Where it comes from.
        check: The self-check; None where nothing was recorded to check against.
        kept: The stream, from the segments as they lay.
        fresh: The stream from an empty device; the same as `kept` where the recording begins with one.
        capacity: Bytes that the device can give to PyTorch; None if unknown.
    """

    recording: Recording
    check: Check | None
    kept: Stream
    fresh: Stream
    capacity: int | None

    @property
    def midway(self) -> bool:
        """Segments existed when the recording began."""
        return self.fresh is not self.kept

    @property
    def settings(self) -> Settings:
        """The settings as recorded."""
        return self.recording.history.settings


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting and what it gives in each case.

    Args:
        name: The conf string, as the user wrote it where he did; "" for PyTorch's defaults.
        settings: The setting; None for the recorded one, which may differ between the cases.
        outcomes: One for each case, kept.
        restarted: One for each case, restarted; the same as `outcomes` where no case is midway.
        capacities: Least device memory at which nothing fails, bytes, for each case, kept; empty if
            not searched.
        fresh_capacities: The same, restarted.
    """

    name: str
    settings: Settings | None
    outcomes: tuple[Outcome, ...]
    restarted: tuple[Outcome, ...]
    capacities: tuple[int, ...] = ()
    fresh_capacities: tuple[int, ...] = ()

    def view(self, *, fresh: bool) -> tuple[Outcome, ...]:
        """The outcomes, restarted or kept."""
        return self.restarted if fresh else self.outcomes

    def fits(self, *, fresh: bool) -> tuple[int, ...]:
        """The smallest capacities, restarted or kept; empty if not searched."""
        return self.fresh_capacities if fresh else self.capacities


def named(text: str, cases: Sequence[Case] = ()) -> Settings:
    """The settings that a conf string stands for; memory limits are those of the cases.

    Raises:
        ValueError: PyTorch would refuse the string; the message names the value and the range.
    """
    base = Settings()
    if cases:
        own = cases[0].settings
        base = Settings(limit=own.limit, fraction=own.fraction, throw_on_oom=own.throw_on_oom)
    settings = conf.parse(text, base)[0]
    return settings if settings.fraction == base.fraction else replace(settings, limit=None)


def measured(cases: Sequence[Case], name: str, settings: Settings | None) -> Trial:
    """One trial; its smallest capacities are not searched."""
    kept = tuple(c.kept.outcome(settings or c.settings, c.capacity) for c in cases)
    fresh = (
        c.fresh.outcome(settings or c.settings, c.capacity) if c.midway else k
        for c, k in zip(cases, kept, strict=True)
    )
    return Trial(name, settings, kept, tuple(fresh))


def spread(cases: Sequence[Case], trial: Trial, *, fresh: bool) -> list[Trial]:
    """The trial in each order of addresses that the driver may choose (restarted or kept)."""
    streams = [c.fresh if fresh else c.kept for c in cases]
    seen = [s.orders(trial.settings or c.settings, c.capacity) for s, c in zip(streams, cases, strict=True)]
    return [replace(trial, outcomes=row, restarted=row) for row in zip(*seen, strict=True)]


def fitted(cases: Sequence[Case], trial: Trial) -> Trial:
    """The trial with its smallest capacities."""
    kept, fresh = [], []
    for case, seen, again in zip(cases, trial.outcomes, trial.restarted, strict=True):
        settings = trial.settings or case.settings
        kept.append(case.kept.least(settings, seen, case.capacity))
        fresh.append(case.fresh.least(settings, again, case.capacity) if case.midway else kept[-1])
    return replace(trial, capacities=tuple(kept), fresh_capacities=tuple(fresh))


def search(cases: Sequence[Case], *, rounds: int = ROUNDS) -> tuple[Trial, list[Trial], bool]:
    """Tries the grid on all cases, then `rounds` times the neighbours of the best.

    Returns:
        (recorded, trials, cut): the recorded settings; all others, best first; whether the search
        ended early because the histories are long. The first trials have their smallest capacities.
    """
    recorded = measured(cases, cases[0].recording.conf, None)
    tried: dict[Settings, Trial] = {}
    midway = any(c.midway for c in cases)
    cost = max(sum(len(c.kept) for c in cases) * (2 if midway else 1), 1)
    room = max(BUDGET // cost, 2)
    large = all(c.recording.version in LARGE_SEGMENT_SINCE for c in cases)
    limited = cases[0].settings.limit is not None
    todo = [named(text, cases) for text in grid(limited=limited, large=large)]
    exact = all(c.check is not None for c in cases)
    busy = _busy(cases) if exact else []  # a forecast does not know the sizes that well
    for step in range(rounds + 1):
        for settings in dict.fromkeys(todo):
            if settings not in tried and len(tried) < room:
                tried[settings] = measured(cases, conf.text(settings), settings)
        best = [t.settings for t in ranked(recorded, tried.values(), fresh=midway)[:BEAM] if t.settings]
        best += [cases[0].settings] if step == 0 else []
        todo = [n for s in best for n in neighbours(s, busy, large=large)]
    order = ranked(recorded, tried.values(), fresh=midway)
    known = max(BUDGET // (cost * FIT_RUNS), FITTED)
    first = ranked(recorded, [fitted(cases, t) for t in order[:known]], fresh=midway)
    return fitted(cases, recorded), first + order[known:], len(tried) >= room


def grid(*, limited: bool, large: bool) -> list[str]:
    """The settings that are always tried: each option by itself, and the usual pairs.

    Args:
        limited: A memory limit is in force, without which garbage collection never acts.
        large: This release of torch may know large_segment_size_mb.
    """
    grow = "expandable_segments:True"
    out = ["", grow, *(f"max_split_size_mb:{mb}" for mb in SPLITS)]
    out += [f"roundup_power2_divisions:{d}" for d in DIVISIONS]
    out += [f"{grow},roundup_power2_divisions:4", "max_split_size_mb:128,roundup_power2_divisions:4"]
    out += [f"max_split_size_mb:128,max_non_split_rounding_mb:{mb}" for mb in ROUNDINGS[:1]]
    if large:
        out += [f"large_segment_size_mb:{mb},{grow}" for mb in (12, 40)] + ["large_segment_size_mb:40"]
    if limited:
        out += [f"garbage_collection_threshold:{share}" for share in (0.6, 0.8)]
        out += [f"{grow},garbage_collection_threshold:0.8"]
    return out


def neighbours(settings: Settings, busy: Sequence[int], *, large: bool) -> list[Settings]:
    """One step away in each option.

    Args:
        settings: From where.
        busy: Size classes (entries of the rounding table) that are tried one by one.
        large: As for `grid`.
    """
    out = [replace(settings, expandable=not settings.expandable)]
    splits = (None, *(mb * MIB for mb in reversed(SPLITS)))
    fits = [n for n in _beside(splits, settings.max_split) if n is None or n >= settings.large_segment]
    out += [replace(settings, max_split=n) for n in fits]
    if settings.max_split is not None:
        steps = (settings.large_segment, *(mb * MIB for mb in ROUNDINGS))
        sizes = _beside(steps, settings.max_non_split_rounding)
        out += [replace(settings, max_non_split_rounding=n) for n in sizes if n >= settings.large_segment]
    uniform = len(set(settings.roundup)) == 1
    if uniform:
        out += [replace(settings, roundup=(d,) * 16) for d in _beside((0, *DIVISIONS), settings.roundup[0])]
    for i in busy:
        for d in (0, 2, 4, 8):
            table = (*settings.roundup[:i], d, *settings.roundup[i + 1 :])
            out.append(replace(settings, roundup=table))
    if settings.limit is not None:
        out += [replace(settings, gc_threshold=x) for x in _beside((0.0, *SHARES), settings.gc_threshold)]
    if large:
        follows = settings.max_non_split_rounding == settings.large_segment
        for n in _beside([mb * MIB for mb in LARGE], settings.large_segment):
            if settings.max_split is None or n <= settings.max_split:
                rounding = n if follows else max(settings.max_non_split_rounding, n)
                out.append(replace(settings, large_segment=n, max_non_split_rounding=rounding))
    return out


def _beside(values: Sequence[_T], now: _T) -> list[_T]:
    """The values before and after `now`; all of them where it is none of them."""
    if now not in values:
        return list(values)
    at = values.index(now)
    return [*values[max(at - 1, 0) : at], *values[at + 1 : at + 2]]


def _busy(cases: Sequence[Case]) -> list[int]:
    """The size classes of the most requested bytes, above the small pool."""
    total: dict[int, int] = {}
    for case in cases:
        for kind, _, size, *_ in case.kept.plan.steps:
            if kind == 0 and size > MIB:
                at = min(size.bit_length() - 1 - 20, 15)
                total[at] = total.get(at, 0) + size
    return sorted(sorted(total, key=lambda i: -total[i])[:BUSY])


def ranked(recorded: Trial, trials: Iterable[Trial], *, fresh: bool) -> list[Trial]:
    """Best first: failures, retries (each stops the device), then memory.

    Each option has to earn its place: it counts as 1 % of the live peak, see docs/decisions/020.
    """
    step = sum(o.peak_allocated for o in recorded.view(fresh=fresh)) // PRICE

    def key(trial: Trial) -> tuple[int, ...]:
        cost = _need(trial, fresh=fresh) + step * _options(trial.settings)
        calls = sum(o.segment_operations for o in trial.view(fresh=fresh))
        return (*_troubles(trial, fresh=fresh), cost, calls)

    return sorted(trials, key=key)


def _troubles(trial: Trial, *, fresh: bool) -> tuple[int, int]:
    seen = trial.view(fresh=fresh)
    return sum(o.ooms for o in seen), sum(o.retries for o in seen)


def _need(trial: Trial, *, fresh: bool) -> int:
    """Bytes: the mean of the reserved peak and of what would do; with what stays locked up if unknown."""
    seen, fits = trial.view(fresh=fresh), trial.fits(fresh=fresh)
    peak = sum(o.peak_reserved for o in seen)
    least = sum(fits) if fits else peak + sum(o.stuck for o in seen)
    return (peak + least) // 2


def _options(settings: Settings | None) -> int:
    """Options beyond the defaults; those that are tuned to the sizes of one history count double."""
    if settings is None:
        return 0
    parts = conf.text(replace(settings, roundup=(0,) * 16)).split(",")
    count = sum(1 if part.startswith("expandable") else 2 for part in parts if part)
    entries = len(set(settings.roundup))  # a table of sizes is tuned more than one number
    return count + (2 * entries if any(settings.roundup) else 0)
