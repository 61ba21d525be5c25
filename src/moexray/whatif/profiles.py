"""`[memory]` events of a profile as a stream of requests: what a GPU would see of a run on a CPU.

A profile has no segments and no start, so nothing of it can be checked; it is a forecast. Of host
memory the sizes are the requested ones. Of CUDA memory they are block sizes, without streams: the
replay is approximate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.algorithms.replay import Action, Event, History
from moexray.whatif.recordings import MOST_EVENTS, Recording

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.core.run import Run

__all__ = ["CANNOT_KNOW", "paired", "streams"]

HOST = -1
# What a stream of this kind cannot know; kind -> sentences.
CANNOT_KNOW: dict[str, tuple[str, ...]] = {
    "cpu_profile": (
        "a forecast from a CPU run, without a self-check: a snapshot recorded on a GPU would confirm it",
        "not in a CPU run: GPU workspaces (cuBLAS, attention, collectives) and attention scratch",
        "not in a CPU run: fused kernels, another dtype, streams, CUDA graphs",
        "not in PyTorch's allocator at all: the CUDA context and libraries, hundreds of MB",
        "weights and caches made before the profile began are not in the stream: add their size",
    ),
    "cuda_profile": (
        "CUDA memory events of a profile are rounded block sizes without streams: the replay is approximate",
        "a profile has no self-check; a snapshot with history would be exact",
        "tensors made before the profile began are in the stream only if it saw them freed",
    ),
}


def streams(run: Run) -> list[Recording]:
    """One recording for each CUDA device of each profile; for the host where no profile has CUDA memory."""
    import numpy as np

    out: list[Recording] = []
    for batch in run.batches("trace_memory"):
        devices = np.asarray(batch.columns["device"])
        for device in sorted({int(d) for d in np.unique(devices)}):
            chosen = np.flatnonzero(devices == device)
            address = np.asarray(batch.columns["address"])[chosen].tolist()
            size = np.asarray(batch.columns["bytes"])[chosen].tolist()
            events, older = paired(zip(address[:MOST_EVENTS], size[:MOST_EVENTS], strict=True))
            if not events:
                continue
            kind = "cpu_profile" if device == HOST else "cuda_profile"
            history = History(tuple(events), ())
            notes = _notes(len(chosen), older)
            out.append(Recording(batch.source, device, batch.attrs.get("rank"), history, "", notes, kind))
    cuda = [r for r in out if r.kind == "cuda_profile"]
    return cuda or out


def _notes(marks: int, older: int) -> tuple[str, ...]:
    out = [f"{older} tensors are older than the profile; they live from its start here"] if older else []
    out += [f"only the first {MOST_EVENTS:,} memory events are replayed"] if marks > MOST_EVENTS else []
    return tuple(out)


def paired(marks: Iterable[tuple[int, int]]) -> tuple[list[Event], int]:
    """Pairs each free with the latest allocation at its address.

    Args:
        marks: (address, bytes), in the order of time; bytes are negative for a free.

    Returns:
        (events, older): a free without an allocation belongs to a tensor older than the profile,
        which is allocated before the first event; `older` counts them. An allocation at an address
        that is still held ends the older tensor: its free was not recorded.
    """
    events: list[Event] = []
    before: list[Event] = []
    live: dict[int, int] = {}
    for address, size in marks:
        if size > 0:
            if address in live:
                events.append(Event(Action.FREE_COMPLETED, address, live[address]))
            live[address] = size
            events.append(Event(Action.ALLOC, address, size))
        elif size < 0 and address in live:
            events.append(Event(Action.FREE_COMPLETED, address, live.pop(address)))
        elif size < 0:
            own = -1 - len(before)  # an address that nobody else has
            before.append(Event(Action.ALLOC, own, -size))
            events.append(Event(Action.FREE_COMPLETED, own, -size))
    return before + events, len(before)
