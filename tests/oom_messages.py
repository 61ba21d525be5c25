"""Renders out-of-memory messages in every wording, and wraps them as terminals, mails and logs do."""

import random
import textwrap
from dataclasses import dataclass

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Numbers:
    """Bytes that a message shall say."""

    request: int
    free: int
    total: int
    process: int
    allocated: int
    fragments: int
    private: int = 0
    device: int = 0


def show(value: int) -> str:
    """As torch's format_size does."""
    if value < 1024:
        return f"{value} bytes"
    for unit, scale in (("KiB", 1 << 10), ("MiB", MIB), ("GiB", GIB)):
        if value < scale * 1024 or unit == "GiB":
            return f"{value / scale:.2f} {unit}"
    raise AssertionError


def half_step(value: int) -> float:
    """Half of the last digit that `show` prints, in bytes."""
    for scale in (GIB, MIB, 1 << 10):
        if value >= scale:
            return 0.005 * scale
    return 0.5


def torch_1_0(n: Numbers) -> str:
    return (
        f"RuntimeError: CUDA out of memory. Tried to allocate {show(n.request)} (GPU {n.device}; {show(n.total)} total "
        f"capacity; {show(n.allocated)} already allocated; {show(n.free)} free; {show(n.fragments)} cached)"
    )


def torch_1_11(n: Numbers) -> str:
    return (
        f"RuntimeError: CUDA out of memory. Tried to allocate {show(n.request)} (GPU {n.device}; {show(n.total)} total "
        f"capacity; {show(n.allocated)} already allocated; {show(n.free)} free; {show(n.allocated + n.fragments)} reserved "
        "in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
        "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
    )


def torch_2(n: Numbers, *, who: str = "this", api: str = "CUDA", word: str = "capacity", private: bool = True) -> str:
    process = (
        f"Including non-PyTorch memory, this process has {show(n.process)} memory in use. "
        if who == "this"
        else f"Process {who} has {show(n.process)} memory in use. "
    )
    pools = f"with {show(n.private)} allocated in private pools (e.g., {api} Graphs), " if private else ""
    return (
        f"torch.OutOfMemoryError: {api} out of memory. Tried to allocate {show(n.request)}. GPU {n.device} has a total "
        f"{word} of {show(n.total)} of which {show(n.free)} is free. {process}Of the allocated memory {show(n.allocated)} is "
        f"allocated by PyTorch, {pools}and {show(n.fragments)} is reserved by PyTorch but unallocated. If reserved but "
        f"unallocated memory is large try setting PYTORCH_{api}_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def xpu(n: Numbers) -> str:
    return (
        f"torch.OutOfMemoryError: XPU out of memory. Tried to allocate {show(n.request)}. GPU {n.device} has a total capacity "
        f"of {show(n.total)}. Of the allocated memory {show(n.allocated)} is allocated by PyTorch, and {show(n.fragments)} is "
        "reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory."
    )


def async_backend(n: Numbers) -> str:
    return (
        f"torch.OutOfMemoryError: Allocation on device {n.device} would exceed allowed memory. (out of memory)\n"
        f"Currently allocated     : {show(n.allocated)}\nRequested               : {show(n.request)}\n"
        f"Device limit            : {show(n.total)}\nFree (according to CUDA): {show(n.free)}\n"
        "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB"
    )


def warning(n: Numbers) -> str:
    return (
        f"memory allocation failed with OOM on device {n.device} while trying to allocate {n.request} bytes "
        f"(free: {n.free}, total: {n.total})."
    )


# wording -> (renderer, fields that it prints)
BASE = ("request", "free", "total", "allocated", "fragments", "device")
WORDINGS = {
    "1.0": (torch_1_0, BASE),
    "1.11": (torch_1_11, BASE),
    "2.1": (lambda n: torch_2(n, who="51", word="capacty"), (*BASE, "process", "private")),
    "2.5": (torch_2, (*BASE, "process", "private")),
    "2.3": (lambda n: torch_2(n, private=False), (*BASE, "process")),
    "hip": (lambda n: torch_2(n, api="HIP"), (*BASE, "process", "private")),
    "xpu": (xpu, ("request", "total", "allocated", "fragments", "device")),
    "async": (async_backend, ("request", "free", "total", "allocated", "device")),
}

PREFIXES = (
    "",
    "ERROR 01-12 09:40:11 [core.py:710] ",
    "(EngineCore_DP0 pid=4021) ERROR 01-12 09:40:11 [core.py:710] ",
    "(Worker_TP0 pid=77) ERROR 02-01 10:00:00 [multiproc_executor.py:596] ",
    "(RayWorkerWrapper pid=4242, ip=10.0.0.3) ",
    "[rank3]: ",
    "[2026-02-03 09:00:11 TP3] ",
    "2026-02-03T09:00:11.123456789Z stderr F ",
    "Feb 06 07:00:04 node-0 serve[2201]: ",
    "worker-1  | ",
    "\x1b[36m(EngineCore_DP0 pid=4021)\x1b[0m \x1b[31mERROR\x1b[0m 01-12 09:40:11 [core.py:710] ",
    "> ",
    "    ",
    "> > ",
)


def wrap_anywhere(text: str, width: int, prefix: str, *, repeat: bool) -> str:
    """Cuts a line at a fixed column, inside words and numbers; the prefix may stand on each part."""
    first = prefix + text
    if not repeat:
        return "\n".join(first[i : i + width] for i in range(0, len(first), width))
    body = max(width - len(prefix), 12)
    return "\n".join(prefix + text[i : i + body] for i in range(0, len(text), body))


def wrap_words(text: str, width: int, prefix: str) -> str:
    return "\n".join(prefix + x for x in textwrap.wrap(text, width, break_long_words=False))


def quoted(text: str, how: str) -> str:
    """The message inside another notation."""
    if how == "repr":
        return f"ERROR 10-11 12:27:29 engine.py:157] OutOfMemoryError({text.partition(': ')[2]!r})"
    if how == "html":
        import html

        return html.escape(text, quote=True)
    if how == "json":
        import json

        return json.dumps({"level": "error", "log": f'Traceback (most recent call last):\n  File "a.py", line 1\n{text}\n'})
    if how == "escaped":
        body = text.replace("\n", "\\n")
        return f"ERROR 01-12 09:40:11 [a.py:1] 'Traceback (most recent call last):\\n  File \"a.py\"\\n{body}\\n'"
    return text


def some_numbers(rng: random.Random) -> Numbers:
    total = rng.choice((4, 16, 24, 32, 48, 80, 141)) * GIB - rng.randrange(GIB)
    allocated = rng.randrange(total // 2, total * 9 // 10)
    fragments = rng.randrange(1 << 10, (total - allocated) // 2)
    process = min(allocated + fragments + rng.randrange(GIB), total)
    free = rng.randrange(total - process + 1)
    return Numbers(rng.randrange(1 << 20, 20 * GIB), free, total, process, allocated, fragments, rng.randrange(GIB), rng.randrange(16))
