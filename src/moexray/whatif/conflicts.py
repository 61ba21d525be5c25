"""What is in use on a server that forbids a setting: from what the user says and from launch lines."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.diagnose.advice import launches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Run
    from moexray.diagnose.advice import Launch
    from moexray.whatif.recordings import Recording

__all__ = ["BLOCKERS", "Conflict", "Use", "conflicts", "launch_known"]

EXPANDABLE = "expandable_segments"
# Stable ids -> why memory of expandable segments does not go with it. Source: VERDICTS,
# advice.expandable_segments_unsafe; pytorch 147851 for pools with an allocator of their own.
BLOCKERS: dict[str, str] = {
    "custom_all_reduce": "custom all-reduce under tensor parallelism exports buffers by legacy CUDA IPC, "
    "which cannot export expandable segments; disable custom all-reduce first",
    "sleep_mode": "sleep mode uses an allocator of its own that does not combine with expandable segments "
    "in many releases",
    "cuda_ipc": "memory is shared by legacy CUDA IPC, which cannot export expandable segments",
    "custom_pool": "a MemPool with an allocator of its own does not combine with expandable segments in "
    "many releases",
}
# Engines whose custom all-reduce takes buffers from PyTorch's allocator. TensorRT-LLM takes its
# workspace from the driver itself, plain transformers use NCCL.
OWN_ALL_REDUCE = ("vllm", "sglang")


@dataclass(frozen=True, slots=True)
class Use:
    """What the user says of the server; see the options of `moexray whatif memory`."""

    engine: str | None = None
    tensor_parallel: int = 1
    sleep_mode: bool = False
    cuda_ipc: bool = False
    custom_pool: bool = False
    no_custom_all_reduce: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """An option that must not be advised here.

    Args:
        id: Key of BLOCKERS.
        option: Name of the option of PYTORCH_ALLOC_CONF.
        reason: Where it was seen, and why it forbids the option.
    """

    id: str
    option: str
    reason: str


def conflicts(run: Run, recorded: Sequence[Recording], use: Use) -> list[Conflict]:
    """All conflicts, each once. What is unsafe for one server is advised to none.

    A launch line or log that shows custom all-reduce disabled wins over --engine and --tp.
    """
    found: dict[str, str] = {}
    near = _near(run, recorded)
    off = use.no_custom_all_reduce or any(x.on("disable_custom_all_reduce") or x.reduce_off for x in near)
    if use.engine in OWN_ALL_REDUCE and use.tensor_parallel > 1 and not off:
        found["custom_all_reduce"] = f"--engine {use.engine} --tp {use.tensor_parallel}"
    for id, said in (
        ("sleep_mode", use.sleep_mode),
        ("cuda_ipc", use.cuda_ipc),
        ("custom_pool", use.custom_pool),
    ):
        if said:
            found[id] = f"--{id.replace('_', '-')}"
    for launch in near:
        for words in launch.clashes:
            id = "sleep_mode" if "sleep" in words else "custom_all_reduce"
            if id != "custom_all_reduce" or not use.no_custom_all_reduce:
                found.setdefault(id, f"the launch settings show {words}")
        if launch.failed:
            row = launch.failed[0]
            found.setdefault("cuda_ipc", f"{row['source']} {row['where']} shows such a failure")
    return [Conflict(id, EXPANDABLE, f"{where}: {BLOCKERS[id]}") for id, where in found.items()]


def launch_known(run: Run, recorded: Sequence[Recording], use: Use) -> bool:
    """Whether anything tells what else is in use on the server."""
    return use.engine is not None or any(x.engine or x.settings for x in _near(run, recorded))


def _near(run: Run, recorded: Sequence[Recording]) -> list[Launch]:
    """The servers whose records lie in the folders of the recordings; all of them where none does."""
    folders = {posixpath.dirname(r.source) for r in recorded}
    found = launches(run)
    return [x for x in found if x.folder in folders] or found
