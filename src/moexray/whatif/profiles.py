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

    from moexray.core.run import Batch, Run

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
    "gpu_profile": (
        "a profile has no self-check; a snapshot with history would be exact",
        "GPU memory events of a profile are rounded block sizes without streams: the replay is approximate",
        "tensors made before the profile began are in the stream only if it saw them freed",
    ),
}


def streams(run: Run) -> list[Recording]:
    """One recording for each GPU of each profile; for the host where no profile has GPU memory."""
    batches = run.batches("trace_memory")
    out = [r for batch in batches for r in _of_batch(batch, MOST_EVENTS // len(batches))]
    return [r for r in out if r.kind == "gpu_profile"] or out


def _of_batch(batch: Batch, most: int) -> list[Recording]:
    import numpy as np

    devices, address, size, reserved = (
        np.asarray(batch.columns[name]) for name in ("device", "address", "bytes", "reserved_bytes")
    )
    gpu = (devices != HOST) | (reserved > 0)  # the host's allocator reserves nothing
    out: list[Recording] = []
    for device, on_gpu in sorted({(int(d), bool(g)) for d, g in zip(devices, gpu, strict=True)}):
        chosen = np.flatnonzero((devices == device) & (gpu == on_gpu))
        first = chosen[:most]
        events, older = paired(zip(address[first].tolist(), size[first].tolist(), strict=True))
        if events:
            kind = "gpu_profile" if on_gpu else "cpu_profile"
            known = (batch.source, device, batch.attrs.get("rank"), History(tuple(events), ()), "")
            peak = int(reserved[chosen].max()) if on_gpu else 0
            out.append(Recording(*known, _notes(len(chosen), older, most), kind, stated_peak=peak or None))
    return out


def _notes(marks: int, older: int, most: int) -> tuple[str, ...]:
    out = [f"{older} tensors are older than the profile; they live from its start here"] if older else []
    out += (
        [f"the profile is long: only its first {most:,} memory events are replayed"] if marks > most else []
    )
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
