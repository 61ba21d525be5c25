"""`moexray lab stress`: a memory snapshot with the fragmentation that was asked for."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.core.json_text import json_text
from moexray.faces.cli.new_file import check_new
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say
from moexray.faces.cli.size_option import SizeOption
from moexray.faces.numbers import human

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moexray.verify.host_memory import HostMemory
    from moexray.verify.stress import ArenaHeap, Outcome, Spec, TorchHeap

__all__ = ["command"]

MIX_NAMES = ("moe", "kv", "training", "uniform")  # verify.stress.MIXES, without importing it
POLICIES = ("tlsf", "first-fit", "next-fit", "best-fit", "worst-fit", "buddy", "segregated")  # of an arena
ROOM = 1.5  # of an arena: its bytes / those in use
MOST_EVENTS = 1_000_000  # 470 MB while it is made (measured)


@click.command("stress")
@click.option("-o", "--output", "out", required=True, type=click.Path(dir_okay=False, path_type=Path),
              help="The snapshot; .gz compresses it.")  # fmt: skip
@click.option("--target-ratio", type=click.FloatRange(0, 1, max_open=True), default=0.6, show_default=True,
              help="1 - largest free / total free at the end.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same bytes.")
@click.option("--events", type=click.IntRange(1, MOST_EVENTS), default=20_000, show_default=True,
              help="Entries of the history, about.")  # fmt: skip
@click.option("--mix", type=click.Choice(MIX_NAMES), default="moe", show_default=True, help="The workload.")
@click.option("--live", type=SizeOption(), default="4GiB", show_default=True, help="Memory in use, about.")
@click.option("--capacity", type=SizeOption(), help="Memory of the device; less than it needs makes retries.")
@click.option("--expandable", is_flag=True, help="With expandable segments.")
@click.option("--streams", type=click.IntRange(1, 8), default=1, show_default=True,
              help="CUDA streams; with more than one some frees are deferred.")  # fmt: skip
@click.option("--graph-pool", is_flag=True, help="A CUDA graph is captured into a private pool.")
@click.option("--oom", is_flag=True, help="End in a request that fails.")
@click.option("--arena", "policy", type=click.Choice(POLICIES),
              help="Drive a real runtime.arena of this policy instead; it takes 1.5 x --live.")  # fmt: skip
@click.option("--limits", "limits_file", type=click.Path(dir_okay=False, path_type=Path),
              help="TOML with other limits for the host's memory, table [host_memory].")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite the snapshot.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(out: Path, form: str, limits_file: Path | None, *, force: bool, **options: Any) -> None:
    """Cut up the memory of PyTorch's allocator and write the snapshot that PyTorch would write.

    A simulated workload runs on a simulated device until the free memory has the wanted
    fragmentation ratio: no GPU and no torch is needed. The file opens in `moexray memory`,
    `diagnose` and `whatif memory`, and in PyTorch's own viewer. Ctrl-C ends the run early; what was
    recorded until then is written. The host's own counters of fragmentation are read before and after.
    With --arena the same workload has real memory: blocks are moved where no hole serves a request, and the
    bytes of each are checked.
    """
    with refusing():
        check_new(out, force=force)
        document = _run(out, limits_file, options)
    say(json_text(document) if form == "json" else _text(document))


def _run(out: Path, limits_file: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    from moexray.core.limits import Limits
    from moexray.core.limits.load import load_limits
    from moexray.verify import host_memory
    from moexray.verify.stress import Spec, record

    limits = (load_limits(limits_file) if limits_file else Limits()).host_memory
    spec = Spec(
        seed=options["seed"],
        events=options["events"],
        target=options["target_ratio"],
        live_bytes=options["live"],
        mix=options["mix"],
        expandable=options["expandable"],
        streams=options["streams"],
        graph_pool=options["graph_pool"],
        oom=options["oom"],
        capacity=options["capacity"],
    )
    before = host_memory.read_host_memory()
    policy = options["policy"]
    with _interruptible() as stop:
        heap, outcome = _in_arena(spec, policy, stop) if policy else record(spec, stop)
    after = host_memory.read_host_memory()
    _write(out, heap)
    verdict, reason = host_memory.judge(after, limits)
    return {
        "schema": "moexray.lab.stress/1",
        "file": str(out),
        **_figures(spec, heap, outcome),
        "host": {**_host(after, before), "verdict": verdict, "reason": reason},
    }


def _in_arena(spec: Spec, policy: str, stop: Callable[[], bool]) -> tuple[ArenaHeap, Outcome]:
    from moexray.runtime.arena import Arena
    from moexray.verify.stress import ArenaHeap, drive

    if spec.expandable or spec.graph_pool or spec.oom or spec.streams > 1:
        hint = "leave out --expandable, --streams, --graph-pool and --oom, or --arena"
        raise UsageError("an arena has no segments, streams or graphs, and moves before it fails", hint=hint)
    spec.check()
    size = spec.capacity or int(spec.live_bytes * ROOM)
    heap = ArenaHeap(Arena(size, policy=policy, spill=False, name="stress"), policy)
    return heap, drive(heap, spec, stop)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Gives a function that tells whether Ctrl-C was pressed; a second Ctrl-C ends at once."""
    pressed: list[int] = []
    old = signal.getsignal(signal.SIGINT)

    def note(number: int, _: object) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, old)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, old)


def _write(out: Path, heap: ArenaHeap | TorchHeap) -> None:
    import gzip
    import pickle

    content = pickle.dumps(heap.snapshot(), protocol=4)
    try:
        out.write_bytes(gzip.compress(content, 6, mtime=0) if out.suffix == ".gz" else content)
    except OSError as why:
        hint = "check its rights and the space left"
        raise UsageError(f"{out} cannot be written ({why.strerror})", hint=hint) from why


def _figures(spec: Spec, heap: ArenaHeap | TorchHeap, outcome: Outcome) -> dict[str, Any]:
    return {
        "seed": spec.seed,
        "mix": spec.mix,
        "target_ratio": spec.target,
        "ratio": outcome.ratio,
        "error": outcome.error,
        "events": outcome.events,
        "steps": outcome.steps,
        "interrupted": outcome.interrupted,
        "used_bytes": outcome.used_bytes,
        "free_bytes": outcome.free_bytes,
        "largest_free_bytes": outcome.largest_free_bytes,
        **_counters(heap, outcome),
    }


def _counters(heap: ArenaHeap | TorchHeap, outcome: Outcome) -> dict[str, Any]:
    from moexray.verify.stress import TorchHeap

    if isinstance(heap, TorchHeap):
        counters = heap.allocator.counters
        return {
            "stuck_bytes": heap.allocator.stuck(),
            "reserved_bytes": counters.reserved,
            "peak_reserved_bytes": counters.peak_reserved,
            "retries": counters.retries,
            "ooms": counters.ooms,
            "arena": None,
        }
    figures, size = heap.arena.figures(), heap.arena.capacity
    moved = {"compactions": figures.compactions, "moved_bytes": figures.moved_bytes}
    return {
        "stuck_bytes": 0,
        "reserved_bytes": size,
        "peak_reserved_bytes": size,
        "retries": 0,
        "ooms": outcome.failures,
        "arena": {"policy": heap.policy, **moved, "damaged_blocks": heap.damaged},
    }


def _host(after: HostMemory, before: HostMemory) -> dict[str, Any]:
    from moexray.verify.host_memory import since

    run = since(before, after)
    return {
        "largest_free_order": after.order,
        "compaction_success_ratio": after.success_ratio,
        "compact_stall": after.stalls,
        "compact_success": after.successes,
        "compact_stall_during": run.stalls,
        "compact_success_during": run.successes,
        "zones": [{"node": z.node, "name": z.name, "free_blocks": list(z.blocks)} for z in after.zones],
    }


def _text(d: dict[str, Any]) -> str:
    cut = " (interrupted: what was recorded until then)" if d["interrupted"] else ""
    sizes = {k: human(d[k], "bytes") for k in d if k.endswith("_bytes")}
    largest = f"largest free {sizes['largest_free_bytes']} of {sizes['free_bytes']} free"
    failed = f"retries {d['retries']}, failed requests {d['ooms']}"
    if arena := d["arena"]:
        lost = f"{arena['damaged_blocks']} blocks DAMAGED" if arena["damaged_blocks"] else "no byte was lost"
        moved = f"{arena['compactions']:,} moves of {human(arena['moved_bytes'], 'bytes')} in all, {lost}"
        failed = f"a real arena ({arena['policy']}): {moved}; failed requests {d['ooms']}"
    return "\n".join((
        f"{d['file']}: {d['events']:,} events, {d['steps']:,} steps of {d['mix']}, seed {d['seed']}{cut}",
        f"  fragmentation ratio {d['ratio']:.3f}, {d['error']:+.3f} from {d['target_ratio']:g}: {largest}",
        f"  in use {sizes['used_bytes']}, reserved {sizes['reserved_bytes']}, stuck {sizes['stuck_bytes']}",
        f"  {failed}",
        f"  host memory: {d['host']['verdict']}: {d['host']['reason']}",
        f"next: moexray memory{'' if d['arena'] else ', diagnose or whatif memory'} of {d['file']}",
    ))  # fmt: skip
