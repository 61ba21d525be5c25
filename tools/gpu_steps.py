"""What the steps of gpu_record.py do, each in a process of its own; needs torch, nothing else.

gpu_record.py starts it: python gpu_steps.py OUT STEP [--dry-run], STEP being a JSON object with name,
work, conf, limit_mib. The last line printed is the result as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import hashlib
import json
import os
import pickle
import platform
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from gpu_record import MIB, SEED, sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    Save = Callable[..., None]
    Result = dict[str, Any]

LARGEST_FILE = 1_000_000  # bytes; recordings are committed as test data


# ---- the device, and a CPU with the same methods for the dry run


class Cuda:
    """The device with its recorder, and what the steps need of it."""

    suffix = ".pickle.gz"
    device = torch.device("cuda", 0)

    def __init__(self, conf: str, limit_mib: int) -> None:
        del conf  # the environment holds it
        torch.cuda.init()
        self.total = torch.cuda.get_device_properties(0).total_memory
        self.room = limit_mib * MIB or torch.cuda.mem_get_info()[0]  # bytes that it can give
        self.beyond = self.room + 64 * MIB  # bytes that it cannot
        if limit_mib:
            torch.cuda.set_per_process_memory_fraction(self.room / self.total)
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=100_000)

    def facts(self) -> Result:
        about = torch.cuda.get_device_properties(0)
        ask = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        try:
            said = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False).stdout
        except (OSError, subprocess.TimeoutExpired) as why:
            said = str(why)
        out = {"gpu": about.name, "capability": (about.major, about.minor)}
        out |= {"free_and_total_bytes": torch.cuda.mem_get_info(), "nvidia_smi": said.splitlines()}
        return out | {"backend": torch.cuda.get_allocator_backend(), "cuda": torch.version.cuda}

    def state(self) -> Result:
        """What a snapshot leaves out."""
        stats = {k: v for k, v in torch.cuda.memory_stats().items() if v}
        return {"room_bytes": self.room, "total_bytes": self.total, "stats": stats}

    def save(self, path: Path) -> None:
        """Writes all that was recorded; of stack frames the file's name without its folder."""
        snapshot = torch.cuda.memory._snapshot()
        holders = [entry for trace in snapshot["device_traces"] for entry in trace]
        holders += [h for s in snapshot["segments"] for h in (s, *s["blocks"])]
        for frame in (f for h in holders for f in h.get("frames", ())):
            frame["filename"] = Path(frame["filename"]).name
        with gzip.open(path, "wb") as file:
            pickle.dump(snapshot, file, protocol=4)

    def stop_recording(self) -> None:
        torch.cuda.memory._record_memory_history(enabled=None)

    def empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    empty_cache = staticmethod(torch.cuda.empty_cache)
    synchronize = staticmethod(torch.cuda.synchronize)
    stream = staticmethod(torch.cuda.Stream)
    on = staticmethod(torch.cuda.stream)
    pool = staticmethod(torch.cuda.MemPool)
    using = staticmethod(torch.cuda.use_mem_pool)

    def work(self, tensor: torch.Tensor, stream: Any, cycles: int) -> None:
        """Work on `stream` that uses the tensor, as record_stream tells the allocator."""
        with self.on(stream):
            torch.cuda._sleep(cycles)
        tensor.record_stream(stream)

    def capture(self, work: Callable[[], Any], shared: Any = None) -> tuple[Any, Any]:
        """A CUDA graph of `work`, and its output; in the pool of the graph `shared`."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=None if shared is None else shared.pool()):
            out = work()
        return graph, out

    def driver(self) -> tuple[Callable[[int], Any], Callable[[Any], Any]]:
        """The driver's own allocate and free, on which cudaMalloc and cudaFree stand."""
        cuda = ctypes.CDLL("libcuda.so.1")

        def allocate(size: int) -> ctypes.c_uint64:
            pointer = ctypes.c_uint64()
            if error := cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)):
                raise RuntimeError(f"cuMemAlloc of {size} bytes: error {error}")
            return pointer

        return allocate, cuda.cuMemFree_v2


class Cpu(Cuda):
    """The same on CPU tensors: no streams, graphs run at once, memory events from the profiler."""

    suffix = ".json.gz"
    device = torch.device("cpu")

    def __init__(self, conf: str, limit_mib: int) -> None:
        torch._C._accelerator_setAllocatorSettings(conf)  # refuses what a device would refuse
        self.room, self.beyond = (limit_mib or 512) * MIB, 1 << 60
        self.record()

    def record(self) -> None:
        cpu = torch.profiler.ProfilerActivity.CPU
        self.profile = torch.profiler.profile(activities=[cpu], profile_memory=True)
        self.profile.start()

    def stop_recording(self) -> None:
        if self.profile is not None:
            self.profile.stop()
        self.profile = None

    def save(self, path: Path) -> None:
        self.profile.stop()
        self.profile.export_chrome_trace(str(path))
        self.record()

    def facts(self) -> Result:
        return {"cpus": os.cpu_count()}

    def state(self) -> Result:
        return {"room_bytes": self.room}

    def capture(self, work: Callable[[], Any], shared: Any = None) -> tuple[Any, Any]:
        del shared
        return SimpleNamespace(replay=work), work()

    empty_cache = synchronize = stream = work = staticmethod(lambda *_: None)
    on = using = staticmethod(contextlib.nullcontext)
    pool = staticmethod(dict)
    driver = staticmethod(lambda: (bytearray, len))


# ---- what the steps do; each returns what record.json keeps, and `save` names a file


def facts(m: Cuda, save: Save) -> Result:
    """Versions, driver, device, environment."""
    del save
    names = [k for k in os.environ if k.startswith(("PYTORCH_", "CUDA_", "NVIDIA_DRIVER"))]
    versions = {"torch": torch.__version__, "git": torch.version.git_version}
    host = {"python": platform.python_version(), "system": platform.platform()}
    return {**versions, **host, **m.facts(), "environment": {k: os.environ[k] for k in sorted(names)}}


def scripted(m: Cuda, save: Save) -> Result:
    """The sequence above; a request that fails is left out, and its free with it."""
    live: dict[int, Any] = {}
    count, failed = 0, []
    for action, key, size in sequence():
        if action == "free":
            live.pop(key, None)
        elif action == "empty_cache":
            m.empty_cache()
        else:
            try:
                count += 1
                live[key] = m.empty(size)
            except RuntimeError as why:  # torch.OutOfMemoryError is one
                failed.append({"key": key, "bytes": size, "message": str(why)})
    save()
    return {"allocations": count, "live": len(live), "failed": failed}


def running_out(m: Cuda, save: Save) -> Result:
    """A retry and what it costs; an error and its words; an error that an immediate second try cures."""
    part = m.room // 13 // (2 * MIB) * 2 * MIB
    out: dict[str, Any] = {"part_bytes": part}
    out["plain"] = _attempt(m, 8 * part)
    m.empty_cache()
    cached = [m.empty(part) for _ in range(12)]
    del cached
    out["with_retry"] = _attempt(m, 8 * part)  # fits only once the cached parts are given back
    m.empty_cache()
    out["beyond"] = _attempt(m, m.beyond)
    m.empty_cache()
    whole = m.empty(10 * part)
    del whole
    waiting, alive = m.empty(5 * part), m.empty(5 * part)  # two halves of one segment
    m.work(waiting, m.stream(), 200_000_000)  # about 0.1 s on another stream
    del waiting
    out["first"], out["second"] = _attempt(m, 5 * part), _attempt(m, 5 * part)
    del alive
    save()
    return out


def streams(m: Cuda, save: Save) -> Result:
    """Tensors used on a second stream: their frees complete later, at some next allocation."""
    side, rng, kept = m.stream(), random.Random(SEED), []
    for i in range(120):
        mine = m.empty(rng.choice((4096, 300_000, 3 * MIB, 24 * MIB)))
        m.work(mine, side, rng.choice((10_000, 2_000_000)))
        del mine
        with m.on(side):
            theirs = m.empty(rng.choice((8192, 2 * MIB, 12 * MIB)))
        kept.append((theirs, m.empty(rng.choice((512, MIB, 5 * MIB)))))
        if len(kept) > 8:
            del kept[rng.randrange(len(kept))]
        if i % 40 == 39:
            m.synchronize()
    theirs = None
    save()
    return {"kept": len(kept)}


def graphs(m: Cuda, save: Save) -> Result:
    """Two graphs that share a private pool, replayed between ordinary allocations, then dropped."""
    static = m.empty(4 * MIB)

    def chain() -> Any:
        x = static + 1
        for size in (MIB // 2, 3 * MIB, 16 * MIB):
            y = m.empty(size).fill_(1)
            x = x + y[0]
        return x

    side = m.stream()
    with m.on(side):
        chain()  # loads the kernels
    m.synchronize()
    first, kept = m.capture(chain)
    between = m.empty(6 * MIB)
    second, also = m.capture(chain, first)
    for _ in range(3):
        first.replay()
        second.replay()
        between = m.empty(6 * MIB)
    m.synchronize()
    save()
    del first, second, kept, also, between
    m.empty_cache()
    save("-released")
    return {}


def pools(m: Cuda, save: Save) -> Result:
    """MemPools, plain and no_split: blocks of both pools and of the default one, frees crossing."""
    out, kept, held = {}, [], []
    for options in ({}, {"no_split": True}, {"use_on_oom": True}):
        try:
            pool = m.pool(**options)
        except TypeError as why:  # an older torch
            out[str(options)] = str(why)
            continue
        held.append(pool)
        with m.using(pool):
            mine = [m.empty(size) for size in (1000, MIB, 3 * MIB, 3 * MIB, 30 * MIB, 7 * MIB)]
            del mine[1::2]
            mine.append(m.empty(2 * MIB))
        outside = m.empty(3 * MIB)
        del mine[2]  # 30 MiB, which a use_on_oom pool may lend to what follows
        kept += [mine, outside, m.empty(30 * MIB)]
    save()
    del kept[:], held[:], mine, pool
    m.empty_cache()
    save("-released")
    return out


def costs(m: Cuda, save: Save) -> Result:
    """Microseconds by size: a miss, a hit, giving back; the driver's own calls. Medians of 15."""
    del save
    m.stop_recording()
    (driver_alloc, driver_free), rows = m.driver(), []
    for mib in (2, 20, 60, 200, 600, 2000, 6000):
        size, times = mib * MIB, {"miss": [], "hit": [], "release": [], "driver_alloc": [], "driver_free": []}
        if size > m.room // 2:
            break
        for _ in range(15):
            m.empty_cache()
            m.synchronize()
            for name in ("miss", "hit"):
                seconds, tensor = _timed(m.empty, size)
                times[name].append(seconds)
                del tensor
            times["release"].append(_timed(m.empty_cache)[0])
            seconds, pointer = _timed(driver_alloc, size)
            times["driver_alloc"].append(seconds)
            times["driver_free"].append(_timed(driver_free, pointer)[0])
        medians = {k: _median_us(v) for k, v in times.items()}
        rows.append({"mib": mib, "microseconds": medians})
    return {"by_size": rows}


def counters(m: Cuda, save: Save) -> Result:
    """Tokens per expert counted on the device inside a graph, copied out after each replay."""
    del save
    m.stop_recording()
    experts, pairs = 64, 2048
    ids = torch.zeros(pairs, dtype=torch.int64, device=m.device)
    ones = torch.ones(pairs, dtype=torch.int32, device=m.device)
    counts = torch.zeros(experts, dtype=torch.int32, device=m.device)
    host = torch.zeros(experts, dtype=torch.int32, pin_memory=m.device.type == "cuda")

    def count() -> None:
        counts.zero_()
        counts.scatter_add_(0, ids, ones)

    count()
    graph, _ = m.capture(count)
    dice, wrong, replay, copy = torch.Generator().manual_seed(SEED), 0, [], []
    for _ in range(100):
        fresh = torch.randint(experts, (pairs,), generator=dice)
        ids.copy_(fresh)
        m.synchronize()
        replay.append(_timed(lambda: (graph.replay(), m.synchronize()))[0])
        copy.append(_timed(lambda: (host.copy_(counts, non_blocking=True), m.synchronize()))[0])
        wrong += not torch.equal(host.long(), torch.bincount(fresh, minlength=experts))
    medians = {"replay": _median_us(replay), "copy": _median_us(copy)}
    return {"replays": len(replay), "wrong": wrong, "microseconds": medians}


def _median_us(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e6, 2)


def _timed(call: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    out = call(*arguments)
    return time.perf_counter() - start, out


def _attempt(m: Cuda, size: int) -> dict[str, Any]:
    """One request, given back at once: its time, and the words where it fails."""
    start = time.perf_counter()
    try:
        m.empty(size)
        message = None
    except RuntimeError as why:
        message = str(why)
    return {"bytes": size, "microseconds": round((time.perf_counter() - start) * 1e6, 1), "message": message}


def main() -> None:
    """Runs one step and prints what record.json keeps of it."""
    out, step = Path(sys.argv[1]), json.loads(sys.argv[2])
    machine = Cpu if "--dry-run" in sys.argv else Cuda
    device, files = machine(step["conf"], step["limit_mib"]), {}

    def save(part: str = "") -> None:
        path = out / f"{step['name']}{part}{device.suffix}"
        device.save(path)
        data = path.read_bytes()
        if len(data) > LARGEST_FILE:
            path.unlink()
            raise ValueError(f"{path.name} would have {len(data)} bytes")
        files[path.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    try:
        result = WORK[step["work"]](device, save)
    finally:
        device.stop_recording()
    print(json.dumps({"files": files, "result": result, **device.state()}))


WORK = {f.__name__: f for f in (facts, scripted, running_out, streams, graphs, pools, costs, counters)}

if __name__ == "__main__":
    main()
