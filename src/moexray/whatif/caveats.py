"""What a reader must know before relying on the result of a what-if: a sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.algorithms import conf
from moexray.algorithms.replay import Action
from moexray.core.sizes import human_bytes
from moexray.whatif.profiles import CANNOT_KNOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.algorithms.blocks import Settings
    from moexray.whatif.search import Case, Trial

__all__ = ["caveats", "of_setting"]

# Release of torch that brought an option. Source: pytorch PR 172056 for the large segment (merged
# in early 2026); the others from the spec, estimates.
SINCE = {"expandable_segments": "2.1", "large_segment_size_mb": "2.11", "max_non_split_rounding_mb": "2.6"}


def caveats(
    cases: Sequence[Case], recorded: Trial, *, fresh: bool, cut: bool, capacity_given: bool
) -> list[str]:
    """What holds for the whole experiment.

    Args:
        cases: What was replayed.
        recorded: The recorded settings.
        fresh: The restarted replay decides, see whatif/search.py.
        cut: The search ended early.
        capacity_given: The user stated the capacity.
    """
    out = [
        text for kind in dict.fromkeys(c.recording.kind for c in cases) for text in CANNOT_KNOW.get(kind, ())
    ]
    out += [note for c in cases for note in c.recording.notes]
    if any(c.midway for c in cases):
        old = human_bytes(max(c.kept.held for c in cases))
        out.append(f"{old} of segments existed before the first event: {_START[fresh]}")
        if any(c.capacity is not None and c.kept.held > c.capacity for c in cases):
            out.append("more than the capacity was reserved before the first event")
    if ambiguous := sum(c.kept.plan.ambiguous for c in cases):
        out.append(f"{ambiguous} blocks that lived at the start may be up to 1 MiB larger than assumed")
    sizes = [c.capacity for c in cases if c.capacity is not None]
    if not sizes:
        out.append("the memory of the device is not known, so no request can fail here: give --capacity")
    elif not capacity_given:
        out.append(
            f"the capacity of {human_bytes(max(sizes))} is inferred from a request that failed "
            "(recorded, or in a log); --capacity states it"
        )
        real = sum(e.action == Action.OOM for c in cases for e in c.recording.history.events)
        if (here := sum(o.ooms for o in recorded.outcomes)) > real:
            out.append(
                f"{here} requests fail with the recorded settings here, {real} did in the recording: the "
                "device had more memory earlier, so failures before the last one may be spurious"
            )
    if any(s.pool != (0, 0) for c in cases for s in c.recording.history.segments):
        out.append(
            "private pools (CUDA graphs, MemPool) are in use; a MemPool with an allocator of its own does "
            "not combine with expandable segments (--custom-pool)"
        )
    if cut:
        out.append("the history is long: only a part of the settings was tried")
    return list(dict.fromkeys(out))


_START = {
    False: "they are kept as they lay, so a setting shows only what it does to later requests",
    True: "what lived in them is allocated afresh here, in the order of addresses, as after a restart; the "
    "true order is unknown. Record from the start of the process for an exact answer",
}


def of_setting(cases: Sequence[Case], trial: Trial, *, launch_known: bool) -> list[str]:
    """What holds for the setting that is advised."""
    if trial.settings is None:
        return []
    text = conf.text(trial.settings)
    out = []
    if unproven := _unproven(cases, trial.settings):
        out.append(
            f"the rules of {', '.join(unproven)} are read from PyTorch's source, not confirmed on a GPU"
        )
    if "expandable_segments" in text and not launch_known:
        out.append(
            "no launch settings were given: check that custom all-reduce, CUDA IPC, sleep mode and MemPools "
            "with an allocator of their own are not in use (--engine, --tp)"
        )
    if "max_split_size_mb" in text:
        out.append(
            "a split limit can make large requests fail in a phase that was not recorded, such as the "
            "loading of weights"
        )
    if "max_split_size_mb" in text and "expandable_segments" in text:
        out.append("these two together crashed older releases when memory ran short (pytorch issue 123548)")
    for option, release in SINCE.items():
        if option in text:
            out.append(f"{option} needs torch {release} or later")
    if "garbage_collection_threshold" in text:
        out.append("garbage_collection_threshold acts only under a memory fraction below 1")
    if text:
        out.append("torch before 2.9 reads PYTORCH_CUDA_ALLOC_CONF only; later, it wins where both are set")
    return out


def _unproven(cases: Sequence[Case], settings: Settings) -> list[str]:
    """Options of a setting that no case was recorded with, or whose replay was not checked."""
    proven = {p.partition(":")[0] for c in cases if c.check for p in conf.text(c.settings).split(",")}
    names = [p.partition(":")[0] for p in conf.text(settings).split(",") if not p[:1].isdigit()]
    return [n for n in dict.fromkeys(names) if n and n not in proven]
