"""Which allocator setting would have served this history better: tried, not guessed.

A recommendation is given only when the replay of the recorded settings agrees with the recording in
every placement (the self-check), and when no feature in use forbids the setting.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moexray.algorithms import conf
from moexray.algorithms.blocks import Settings
from moexray.algorithms.replay import Action, Check, Event, History, SegmentState, replay
from moexray.algorithms.simulate import Outcome, Plan, prepare, simulate, smallest_capacity
from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moexray.core.run import Batch, Run

__all__ = [
    "Advice",
    "Case",
    "Recording",
    "Trial",
    "advise",
    "prepare_cases",
    "recordings",
    "search",
]

MIB = 1 << 20
GIB = 1 << 30
# Least relative gain in peak reserved memory that is worth a change of setting; below it the order
# of addresses, which the driver chooses, may decide.
LEAST_GAIN = 0.02
FITTED = 6  # best trials whose smallest capacity is searched
LEAST_STUCK_GAIN = 0.10  # of the peak: memory that stays locked up between steps


@dataclass(frozen=True, slots=True)
class Recording:
    """One device's history of one snapshot."""

    source: str
    device: int
    rank: int | None
    history: History
    conf: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """A recording made ready: its self-check, its plan, the memory its device could give (bytes)."""

    recording: Recording
    check: Check
    plan: Plan
    capacity: int | None


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting and what it gives in each case.

    Args:
        name: "as recorded" or the conf string.
        settings: The setting; None for "as recorded", which may differ between the cases.
        outcomes: One for each case.
        capacities: Least device memory at which nothing fails, bytes, for each case; empty if
            not searched.
    """

    name: str
    settings: Settings | None
    outcomes: tuple[Outcome, ...]
    capacities: tuple[int, ...] = ()

    @property
    def total(self) -> tuple[int, int, int, int, int]:
        """Sums over the cases: failures, retries, peak reserved, stuck, segment operations."""
        parts = [(o.ooms, o.retries, o.peak_reserved, o.stuck, o.segment_operations) for o in self.outcomes]
        return tuple(map(sum, zip(*parts, strict=True)))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Advice:
    """The line to set, or why there is none.

    Args:
        line: e.g. "PYTORCH_ALLOC_CONF=expandable_segments:True"; None where nothing is advised.
        reason: In one or two sentences, with numbers.
        trial: The trial that it rests on.
        blocked: Settings that would have been better but must not be used here, and why.
    """

    line: str | None
    reason: str
    trial: Trial | None = None
    blocked: tuple[str, ...] = ()


def recordings(run: Run) -> list[Recording]:
    """The histories of all snapshots of a run that can be replayed.

    Raises:
        UsageError: there is none; the message says what was missing.
    """
    out, why = [], ["no allocator snapshot was read"]
    for events in run.batches("snapshot_events"):
        for row in (r for r in run.rows("snapshot") if r["source"] == events.source):
            recording, reason = _recording(run, events, row)
            if recording is None:
                why.append(f"{row['source']}, device {row['device']}: {reason}")
            else:
                out.append(recording)
    if not out:
        hint = "record with torch.cuda.memory._record_memory_history(); see docs/capture.md"
        raise UsageError("no history to replay", where="; ".join(why[-3:]), hint=hint)
    return out


def _recording(run: Run, events: Batch, row: Mapping[str, Any]) -> tuple[Recording | None, str]:
    import numpy as np

    device = row["device"]
    columns, pools = events.columns, events.attrs.get("pools") or ()
    chosen = np.flatnonzero(np.asarray(columns["device"]) == device)
    if len(chosen) < 2:
        return None, "it holds no allocation history"

    def take(name: str) -> list[int]:
        return [int(x) for x in np.asarray(columns[name])[chosen]]

    pool_ids = take("pool") if "pool" in columns else [-1] * len(chosen)
    rows = zip(take("action"), take("address"), take("size_bytes"), take("stream"), pool_ids, strict=True)
    history_events = tuple(Event(Action(a), at, n, s, _pool(pools, p)) for a, at, n, s, p in rows)
    kinds = {e.action for e in history_events}
    if Action.ALLOC in kinds and Action.FREE_REQUESTED in kinds and Action.FREE_COMPLETED not in kinds:
        return None, "its history was recorded without free_completed entries"
    written = row["settings"] or {}
    text = str(written.get("PYTORCH_CUDA_ALLOC_CONF") or written.get("PYTORCH_ALLOC_CONF") or "")
    try:
        settings, notes = conf.parse(text)
    except ValueError as reason:
        return None, f"its settings cannot be replayed ({reason})"
    if written.get("expandable_segments"):
        settings = replace(settings, expandable=True)
    if settings.expandable or Action.SEGMENT_MAP in kinds:
        return None, "it was recorded with expandable segments, whose replay has no self-check yet"
    segments = _segments(run, row["source"], device)
    history = History(history_events, segments, settings)
    return Recording(row["source"], device, row["rank"], history, text, notes), ""


def _pool(pools: Any, index: int) -> tuple[int, int] | None:
    found = pools[index] if 0 <= index < len(pools) else None
    return tuple(found) if found is not None else None


def _segments(run: Run, source: str, device: int) -> tuple[SegmentState, ...]:
    import numpy as np

    [segments] = [b for b in run.batches("snapshot_segments") if b.source == source]
    [blocks] = [b for b in run.batches("snapshot_blocks") if b.source == source]
    owner = np.asarray(blocks.columns["segment"])
    inside: dict[int, list[tuple[int, int, int, bool]]] = {}
    names = ("address", "size_bytes", "requested_bytes", "state")
    columns = [np.asarray(blocks.columns[n]).tolist() for n in names]
    for at, address, size, requested, state in zip(owner.tolist(), *columns, strict=True):
        inside.setdefault(at, []).append((address, size, requested, state != 0))
    c, pools = segments.columns, segments.attrs.get("pools") or ()
    out = []
    for i in np.flatnonzero(np.asarray(c["device"]) == device).tolist():
        pool = _pool(pools, int(c["pool"][i])) if "pool" in c else None
        out.append(
            SegmentState(
                int(c["address"][i]), int(c["total_bytes"][i]), int(c["stream"][i]), bool(c["is_small"][i]),
                pool or (0, 0), tuple(inside.get(i, ())),
            )
        )  # fmt: skip
    return tuple(out)


def grid(base: Settings) -> list[Settings]:
    """The settings to try beside the recorded ones."""
    plain = replace(base, expandable=False, max_split=None, roundup=(0,) * 16)
    grow = replace(plain, expandable=True)
    splits = [replace(plain, max_split=mb * MIB) for mb in (32, 64, 128, 256, 512, 1024)]
    rounds = [replace(plain, roundup=(d,) * 16) for d in (2, 4, 8)]
    pages = [replace(grow, large_segment=mb * MIB) for mb in (12, 40)]
    both = [replace(grow, roundup=(4,) * 16), replace(splits[2], roundup=(4,) * 16)]
    collect = [replace(plain, gc_threshold=share) for share in (0.6, 0.8)] if base.limit is not None else []
    return [plain, grow, *splits, *rounds, *pages, *both, *collect]


def prepare_cases(recorded: Iterable[Recording], capacity: int | None) -> list[Case]:
    """Checks and prepares recordings.

    Args:
        recorded: From `recordings`.
        capacity: Device memory in bytes as the user states it; where None, what a recorded retry
            of any of the devices shows (one server has cards of one size).
    """
    made = [(r, replay(r.history), prepare(r.history)) for r in recorded]
    shown = [plan.capacity[0] for _, _, plan in made if plan.capacity[1] is not None]
    limit = capacity if capacity is not None else max(shown, default=None)
    if capacity is None and limit is not None:
        limit = max(limit, *(plan.capacity[0] for _, _, plan in made))
    return [Case(r, check, plan, limit) for r, check, plan in made]


def search(cases: list[Case], *, extra: Iterable[Settings] = (), local: int = 2) -> list[Trial]:
    """Tries the grid on all cases, then the neighbours of the best, `local` times.

    Returns:
        Trials without doubles: the recorded settings first, then best first. The first few have
        their smallest capacities, which is what ranks them: the room to the next failure.
    """
    own = tuple(simulate(c.plan, c.recording.history.settings, capacity=c.capacity) for c in cases)
    step = max(sum(o.peak_allocated for o in own) // 100, 1)  # 1 % of the live peak is no difference

    def badness(trial: Trial) -> tuple[float, ...]:
        return _badness(trial, step)

    tried: dict[Settings, Trial] = {}
    todo = [*grid(cases[0].recording.history.settings), *extra]
    for _ in range(local + 1):
        for settings in todo:
            if settings not in tried:
                outcomes = tuple(simulate(c.plan, settings, capacity=c.capacity) for c in cases)
                tried[settings] = Trial(conf.text(settings) or "(PyTorch's defaults)", settings, outcomes)
        best = min(tried.values(), key=badness)
        todo = _neighbours(best.settings) if best.settings else []
    others: dict[tuple[Outcome, ...], Trial] = {}
    for trial in sorted(tried.values(), key=badness):
        if trial.outcomes != own:
            others.setdefault(trial.outcomes, trial)  # settings of equal effect: the simplest one
    rest = list(others.values())
    first = sorted((_fitted(cases, t) for t in rest[:FITTED]), key=badness)
    return [_fitted(cases, Trial("as recorded", None, own)), *first, *rest[FITTED:]]


def _fitted(cases: list[Case], trial: Trial) -> Trial:
    settings = [trial.settings or c.recording.history.settings for c in cases]
    fits = (smallest_capacity(c.plan, s) for c, s in zip(cases, settings, strict=True))
    return replace(trial, capacities=tuple(fits))


def _badness(trial: Trial, step: int) -> tuple[float, ...]:
    """Failures, then retries (each stops the device), memory in steps of `step` bytes, simplicity."""
    ooms, retries, reserved, stuck, calls = trial.total
    need = sum(trial.capacities) if trial.capacities else reserved + stuck
    return (ooms, retries, need // step, _trust(trial.settings), calls)


def _trust(settings: Settings | None) -> int:
    """Options beyond the defaults; those that are tuned to the sizes of one history count double."""
    if settings is None:
        return 0
    return sum(1 if part.startswith("expandable") else 2 for part in conf.text(settings).split(",") if part)


def _neighbours(settings: Settings) -> list[Settings]:
    out = []
    if settings.max_split is not None:
        sizes = (settings.max_split // 2, settings.max_split * 2)
        out += [replace(settings, max_split=n) for n in sizes if n >= settings.large_segment]
    divisions = settings.roundup[0]
    if divisions > 1 and len(set(settings.roundup)) == 1:
        out += [replace(settings, roundup=(d,) * 16) for d in (divisions // 2, divisions * 2) if d > 1]
    return out


def advise(cases: list[Case], trials: list[Trial], forbidden: Mapping[str, str]) -> Advice:
    """Chooses the best trial that is allowed and worth it, over all cases together.

    Args:
        cases: From `prepare_cases`.
        trials: From `search`; the first is the recorded one.
        forbidden: Option name -> why it must not be used here.
    """
    wrong = next((c for c in cases if not c.check.exact), None)
    if wrong is not None:
        hits, total = wrong.check.placements
        where = f"{wrong.recording.source}, device {wrong.recording.device}"
        return Advice(None, f"the replay of {where} agrees with {hits} of {total} placements only")
    recorded = trials[0]
    blocked: list[str] = []
    for trial in trials[1:]:
        if not _worth(recorded, trial):
            continue
        text = conf.text(trial.settings or Settings())
        why = next((f"{option}: {reason}" for option, reason in forbidden.items() if option in text), None)
        if why is None:
            line = f"PYTORCH_ALLOC_CONF={text}" if text else "PYTORCH_ALLOC_CONF= (unset it: the defaults)"
            return Advice(line, _gain(recorded, trial), trial, tuple(dict.fromkeys(blocked)))
        blocked.append(why)
    live = sum(o.peak_allocated for o in recorded.outcomes)
    share = 1 - live / max(sum(o.peak_reserved for o in recorded.outcomes), 1)
    reason = (
        f"no setting that may be used here is worth it: {share:.1%} of the peak is not live data. "
        "Fewer or smaller live tensors would help, or memory outside this allocator given back"
    )
    return Advice(None, reason, None, tuple(dict.fromkeys(blocked)))


def _worth(recorded: Trial, trial: Trial) -> bool:
    """Fewer failures or retries, or clearly less memory, and on no case more failures."""
    pairs = list(zip(recorded.outcomes, trial.outcomes, strict=True))
    if any(after.ooms > before.ooms for before, after in pairs):
        return False
    a, b = recorded.total, trial.total
    if a[:2] != b[:2]:
        return b[:2] < a[:2]
    return a[2] - b[2] >= LEAST_GAIN * a[2] or a[3] - b[3] >= LEAST_STUCK_GAIN * a[2]


def _gain(recorded: Trial, trial: Trial) -> str:
    a, b = recorded.total, trial.total
    changes = [
        f"{name} from {before} to {after}"
        for name, before, after in (("failed requests", a[0], b[0]), ("retries", a[1], b[1]))
        if before != after
    ]
    changes += [
        f"{name} from {before / GIB:.2f} to {after / GIB:.2f} GiB"
        for name, before, after in (("peak reserved memory", a[2], b[2]), ("stuck memory", a[3], b[3]))
        if abs(before - after) > GIB // 100
    ]
    devices = "" if len(trial.outcomes) == 1 else f" (sums over {len(trial.outcomes)} devices)"
    return f"in this history it takes {', '.join(changes)}{devices}"
