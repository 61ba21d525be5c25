"""Which allocator setting would have served this history better: tried, not guessed.

A recommendation is given only when the replay of the recorded settings agrees with the recording in
every placement (the self-check), and when no feature in use forbids the setting. Of a profile, which
holds nothing to check against, it is a forecast and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moexray.algorithms import conf
from moexray.algorithms.blocks import ContradictionError, limited
from moexray.core.errors import UsageError
from moexray.core.sizes import human_bytes
from moexray.whatif.cases import Memory, prepare_cases
from moexray.whatif.caveats import caveats, of_setting
from moexray.whatif.conflicts import Conflict, Use, conflicts, launch_known
from moexray.whatif.recordings import LeftOut, Recording, collect, logged_capacity, recordings, total_memory
from moexray.whatif.search import Case, Trial, fitted, measured, named, ranked, search, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.algorithms.blocks import Settings
    from moexray.algorithms.simulate import Outcome
    from moexray.core.run import Run

__all__ = [
    "Advice",
    "Conflict",
    "Memory",
    "Recording",
    "Study",
    "Use",
    "advise",
    "gain",
    "recordings",
    "study",
]

# Least relative gain in memory that is worth a change of setting; below it the order of addresses,
# which the driver chooses, may decide.
LEAST_GAIN = 0.02
CLOSE = 0.05  # of the reserved peak that a profile states: a replay further away is no ground for advice
LEAST_STUCK_GAIN = 0.10  # of the peak: memory that stays locked up between steps
LINE = "PYTORCH_ALLOC_CONF={}"
DEFAULTS = "PyTorch's defaults"
BEFORE = (
    "After a restart the recorded failures and retries do not recur with the recorded settings either: what "
    "fragments the memory was made before the recording began. Record from the start of the process"
)


@dataclass(frozen=True, slots=True)
class Advice:
    """The setting to use, or why there is none.

    Args:
        conf: The string to set, "" for PyTorch's defaults; None where nothing is advised.
        reason: In one or two sentences, with numbers.
        trial: The trial that it rests on.
        blocked: Conflicts that forbid a setting that would have helped.
        caveats: What to know before relying on it.
        fresh: The restarted replay decided.
        line: The variable to set.
        peaks: Least and largest reserved peak over the orders of addresses, bytes, sum of all devices.
    """

    conf: str | None
    reason: str
    trial: Trial | None = None
    blocked: tuple[Conflict, ...] = ()
    caveats: tuple[str, ...] = ()
    fresh: bool = False
    line: str | None = None
    peaks: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """All that a what-if found: cases, the recorded settings, the others (best first), the advice.

    `asked` says that the others are what the user named, in that order.
    """

    cases: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]
    recorded: Trial | None
    trials: tuple[Trial, ...]
    advice: Advice
    asked: bool = False


def study(run: Run, memory: Memory, use: Use, confs: Sequence[str] = ()) -> Study:
    """The whole experiment on the artefacts of a run.

    Args:
        run: What was read.
        memory: What the user says of the device.
        use: What the user says of the server.
        confs: Settings to replay; where empty, all are searched.

    Raises:
        UsageError: nothing in the run can be replayed, or a string that PyTorch would refuse.
    """
    for text in confs:
        _asked(text, ())  # before anything is replayed
    found, left = collect(run)
    if not found and not left:
        recordings(run)  # raises what was missing
    foreign = [r for r in found if r.owner]
    found = [r for r in found if not r.owner]
    left += [
        LeftOut(r.source, r.device, f"{r.owner} made it: no setting of PyTorch's allocator applies to it")
        for r in foreign
    ]
    told = replace(memory, total=total_memory(run), logged=logged_capacity(run))
    cases, broken = prepare_cases(found, told)
    left += broken
    if not cases:
        return _nothing(left)
    cut = False
    try:
        if confs:
            recorded = fitted(cases, measured(cases, cases[0].recording.conf, None))
            trials = [fitted(cases, measured(cases, text, _asked(text, cases))) for text in confs]
        else:
            recorded, trials, cut = search(cases)
    except ContradictionError as why:
        reason = f"its history contradicts itself under other settings: {why}"
        left += [LeftOut(c.recording.source, c.recording.device, reason, c.check) for c in cases]
        return _nothing(left)
    if broken:
        where = f"{broken[0].source}, device {broken[0].device}"
        advice = Advice(None, f"nothing is advised, since the history of {where} cannot be replayed")
    else:
        advice = advise(cases, recorded, trials, conflicts(run, found, use))
    if advice.peaks is not None and advice.peaks[1] > advice.peaks[0] * (1 + LEAST_GAIN / 2):
        low, high = (human_bytes(n) for n in advice.peaks)
        advice = replace(advice, caveats=(f"by the order of addresses the reserved peak is {low} to {high}",))
    more = caveats(cases, recorded, fresh=advice.fresh, cut=cut, capacity_given=memory.capacity is not None)
    if advice.trial is not None:
        more = [*of_setting(cases, advice.trial, launch_known=launch_known(run, found, use)), *more]
    return Study(
        tuple(cases),
        tuple(left),
        recorded,
        tuple(trials),
        replace(advice, caveats=(*advice.caveats, *more)),
        bool(confs),
    )


def _nothing(left: Sequence[LeftOut]) -> Study:
    reasons = "; ".join(dict.fromkeys(f"{x.source}, device {x.device}: {x.reason}" for x in left))
    return Study((), tuple(left), None, (), Advice(None, f"nothing to replay: {reasons}"))


def _asked(text: str, cases: Sequence[Case]) -> Settings:
    """A setting that the user names; a memory fraction of its own is one of the capacity."""
    try:
        settings = named(text, cases)
    except ValueError as why:
        hint = "write it as PYTORCH_ALLOC_CONF takes it, e.g. expandable_segments:True,max_split_size_mb:128"
        raise UsageError(f"PyTorch would refuse --conf {text!r}: {why}", hint=hint) from why
    sizes = [c.capacity for c in cases if c.capacity is not None]
    if settings.fraction >= 1 or settings.limit is not None:
        return settings
    if cases and not sizes:
        raise UsageError(f"--conf {text!r} needs the memory of the card", hint="add --capacity")
    return limited(settings, max(sizes, default=0))


def advise(
    cases: Sequence[Case], recorded: Trial, trials: Sequence[Trial], forbidden: Sequence[Conflict] = ()
) -> Advice:
    """Chooses the best trial that is allowed and worth it, over all cases together.

    What is seen with the segments kept as they lay counts first; where that shows no gain and the
    recording began midway, the replay from a restart decides. Neither may show harm.
    """
    wrong = next((c for c in cases if c.check is not None and not c.check.exact), None)
    if wrong is not None:
        return Advice(None, _inexact(wrong))
    if gap := _gap(cases, recorded):
        return Advice(None, gap)
    words, barred = "", []
    for fresh in (False, True) if any(c.midway for c in cases) else (False,):
        order = ranked(recorded, trials, fresh=fresh)
        good = [t for t in order if _worth(recorded, t, fresh=fresh)]
        good = [t for t in good if not _harms(recorded, t, fresh=not fresh)]
        barred += [c for c in forbidden if c not in barred and any(_uses(t, c) for t in good)]
        for trial in good:
            if any(_uses(trial, c) for c in forbidden):
                why = "but must not be used here"
            else:
                orders = spread(cases, trial, fresh=fresh)
                if all(_worth(recorded, t, fresh=fresh) for t in orders):
                    return _advised(
                        cases, recorded, trial, orders, Advice(None, "", trial, tuple(barred), fresh=fresh)
                    )
                why = "but not in every order of addresses that the driver may choose"
            name = trial.name or DEFAULTS
            words = words or f"{name} would help ({gain(recorded, trial, fresh=fresh)}), {why}"
    return Advice(None, words or _no_help(cases, recorded, trials), None, tuple(barred))


def _advised(
    cases: Sequence[Case], recorded: Trial, trial: Trial, orders: Sequence[Trial], advice: Advice
) -> Advice:
    text = ",".join(filter(None, [*_kept(cases[0].recording.conf), trial.name]))
    sums = [_sums(t.outcomes)[2] for t in orders]
    lost = advice.fresh and _sums(recorded.outcomes)[:2] > (0, 0) == _sums(recorded.restarted)[:2]
    return replace(
        advice,
        conf=text,
        reason=gain(recorded, trial, fresh=advice.fresh) + (f". {BEFORE}" if lost else ""),
        line=LINE.format(text) if text else f"{LINE.format('')} (unset it: {DEFAULTS})",
        peaks=(min(sums), max(sums)),
    )


def _uses(trial: Trial, conflict: Conflict) -> bool:
    return trial.settings is not None and conflict.option in conf.text(trial.settings)


def _inexact(case: Case) -> str:
    check = case.check
    parts = [] if check is None else [
        f"{hits} of {total} {name}"
        for name, (hits, total) in (
            ("placements", check.placements),
            ("new segments", check.segment_allocs),
            ("freed segments", check.segment_frees),
            ("final blocks", check.final_blocks),
        )
        if hits != total
    ]  # fmt: skip
    where = f"{case.recording.source}, device {case.recording.device}"
    return (
        f"the replay of the recorded settings is not exact: in {where} only {', '.join(parts)} agree. What "
        "other settings give is shown, but not advised"
    )


def _gap(cases: Sequence[Case], recorded: Trial) -> str:
    """What a profile says of its reserved peak, where the replay is far from it."""
    for case, seen in zip(cases, recorded.outcomes, strict=True):
        stated = case.recording.stated_peak
        if stated is not None and abs(seen.peak_reserved - stated) > CLOSE * stated:
            here, there = human_bytes(seen.peak_reserved), human_bytes(stated)
            return (
                f"the replay reserves {here} at most, but {case.recording.source} states {there}: what was "
                "there before the profile is missing. A snapshot with history would tell"
            )
    return ""


def _kept(text: str) -> list[str]:
    """The recorded options that do not change where memory goes: they stay."""
    keys = {note.partition(" ")[0] for note in conf.parse(text, strict=False)[1]}
    return [part for part in text.replace(" ", "").split(",") if part.partition(":")[0] in keys]


def _sums(seen: Sequence[Outcome]) -> tuple[int, int, int, int]:
    """Over the cases: failures, retries, peak reserved, stuck bytes."""
    parts = [(o.ooms, o.retries, o.peak_reserved, o.stuck) for o in seen]
    ooms, retries, peak, stuck = (sum(column) for column in zip(*parts, strict=True))
    return ooms, retries, peak, stuck


def _worth(recorded: Trial, trial: Trial, *, fresh: bool) -> bool:
    """It ends failures or retries, or takes clearly less memory; and no case fails more often."""
    before, after = recorded.view(fresh=fresh), trial.view(fresh=fresh)
    if any(b.ooms > a.ooms for a, b in zip(before, after, strict=True)):
        return False
    (ooms, retries, peak, stuck), (ooms2, retries2, peak2, stuck2) = _sums(before), _sums(after)
    if ooms:
        return not ooms2  # fewer failures are no cure
    if retries != retries2:
        return retries2 < retries
    if peak - peak2 >= LEAST_GAIN * peak:
        return True
    if peak2 > peak * (1 + LEAST_GAIN / 2):
        return False
    fits, fits2 = sum(recorded.fits(fresh=fresh)), sum(trial.fits(fresh=fresh))
    return bool(fits2 and fits - fits2 >= LEAST_GAIN * fits) or stuck - stuck2 >= LEAST_STUCK_GAIN * peak


def _harms(recorded: Trial, trial: Trial, *, fresh: bool) -> bool:
    """More failures or retries, or clearly more memory."""
    before, after = _sums(recorded.view(fresh=fresh)), _sums(trial.view(fresh=fresh))
    return after[:2] > before[:2] or (after[:2] == before[:2] and after[2] > before[2] * (1 + LEAST_GAIN))


def gain(recorded: Trial, trial: Trial, *, fresh: bool) -> str:
    """What a setting changes, in words with numbers."""
    a, b = _sums(recorded.view(fresh=fresh)), _sums(trial.view(fresh=fresh))
    changes = [
        f"{name} from {x} to {y}"
        for name, x, y in (("failed requests", a[0], b[0]), ("retries", a[1], b[1]))
        if x != y
    ]
    fits = (sum(recorded.fits(fresh=fresh)), sum(trial.fits(fresh=fresh)))
    sizes = [("peak reserved memory", a[2], b[2]), ("stuck memory", a[3], b[3])]
    sizes += [("least memory that suffices", *fits)] if all(fits) else []
    changes += [
        f"{name} from {human_bytes(x)} to {human_bytes(y)}"
        for name, x, y in sizes
        if abs(x - y) * 100 > max(a[2], 1)
    ]
    many = "" if len(trial.outcomes) == 1 else f" (sums over {len(trial.outcomes)} devices)"
    start = "in this history, replayed as after a restart," if fresh else "in this history"
    return f"{start} it takes {', '.join(changes)}{many}"


def _no_help(cases: Sequence[Case], recorded: Trial, trials: Sequence[Trial]) -> str:
    """Why no setting is advised, and what would help instead."""
    ooms, retries, peak, _ = _sums(recorded.outcomes)
    if ooms:
        return _no_cure(cases, recorded, trials, ooms)
    live = sum(o.peak_allocated for o in recorded.outcomes)
    many = "" if len(cases) == 1 else f" (sum over {len(cases)} devices)"
    share = f"{1 - live / max(peak, 1):.1%} of the peak of {human_bytes(peak)}{many} is not live data"
    if retries:
        return f"no setting that was tried ends the retries ({retries}); {share}. {_INSTEAD}"
    return f"no setting that was tried is worth it: {share}. {_INSTEAD}"


_INSTEAD = (
    "What would help: fewer or smaller live tensors (KV cache share, batch, chunk size), or memory outside "
    "this allocator given back"
)


def _no_cure(cases: Sequence[Case], recorded: Trial, trials: Sequence[Trial], ooms: int) -> str:
    needs = [
        c.kept.outcome(replace(c.settings, limit=None), None).peak_allocated
        - (c.settings.limit or c.capacity or 0)
        for c in cases
    ]
    if max(needs) > 0:
        return (
            f"no setting cures the failed requests ({ooms}): the live tensors alone need "
            f"{human_bytes(max(needs))} more than there is. {_INSTEAD}"
        )
    nearest = ranked(trials[0], trials, fresh=False)[0] if trials else None
    if nearest is None:
        return f"no setting cures the failed requests ({ooms}). {_INSTEAD}"
    left = sum(o.ooms for o in nearest.outcomes)
    need = f" and would need {human_bytes(max(nearest.capacities))}" if nearest.capacities else ""
    name = nearest.name or DEFAULTS
    before = (
        f"{BEFORE}. " if any(c.midway for c in cases) and not sum(o.ooms for o in recorded.restarted) else ""
    )
    return (
        f"no setting that was tried cures the failed requests ({ooms}), though the live tensors alone would "
        f"fit: the nearest, {name}, leaves {left}{need}. {before}{_INSTEAD}"
    )
