"""What to do about an out-of-memory record, with the numbers worked out."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.core.remedies import remedy
from moexray.diagnose.advice import expandable_check, launches
from moexray.diagnose.memory.oom_words import size

if TYPE_CHECKING:
    from moexray.core.finding import Remedy
    from moexray.core.run import Run
    from moexray.diagnose.memory.oom_words import Story

__all__ = ["remedies_for", "settings_name"]

SETTINGS = {
    "vllm": "--gpu-memory-utilization",
    "sglang": "--mem-fraction-static",
    "tensorrt_llm": "kv_cache_config.free_gpu_memory_fraction",
}
ENV = lazy(r"PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF")


def settings_name(run: Run) -> str:
    """The option that sets the engine's share of the device."""
    names = {SETTINGS[x.engine] for x in launches(run) if x.engine in SETTINGS}
    return names.pop() if len(names) == 1 else "--gpu-memory-utilization (SGLang: --mem-fraction-static)"


def step(part: float, total: float) -> str:
    """A share of the device, rounded up to 0.01."""
    return f"{max(math.ceil(100 * part / total - 1e-9), 1) / 100:.2f}"


def remedies_for(id: str, s: Story, run: Run) -> tuple[Remedy, ...]:
    """The remedies of a verdict for this record, best first."""
    lower = _lower(s, run, _excess(id, s))
    plain: dict[str, tuple[Remedy, ...]] = {
        "mem.true_exhaustion": (remedy("chunk-prefill"), *lower, remedy("more-shards")),
        "mem.oversubscription": (remedy("stay-below-total"),),
        "mem.non_torch_buffers": (remedy("lower-dispatch-tokens"), *lower),
        "mem.non_torch": (*lower, remedy("sample-non-torch"), remedy("fewer-channels")),
        "mem.unbudgeted_activation": (remedy("cap-batched-tokens"), *lower, remedy("chunk-prefill")),
        "mem.capture_headroom": (*lower, remedy("fewer-captures")),
    }
    if id == "mem.fragmentation":
        if s.row.get("allocator"):  # an arena of the engine's own: PyTorch's settings do not touch it
            return (remedy("snapshot-move-pins", site="whatever cuts it up"),)
        if "expandable" in s.row:  # the record is an entry of a snapshot: its history is at hand
            return (*_allocator(s, run), remedy("snapshot-try-settings", source=s.row["source"]))
        return (*_allocator(s, run), remedy("replay-history"))
    if id == "mem.fragmentation_contributes":
        return (*lower, remedy("cap-batched-tokens"), *_allocator(s, run))
    if id == "mem.limit_below_free":
        return _limits(s)
    if id == "mem.other_process":
        return _beside(s, run)
    return plain.get(id, ())


def _limits(s: Story) -> tuple[Remedy, ...]:
    look = remedy("look-for-limits")
    allowed = s.figures.limit
    return (look,) if allowed is None else (remedy("raise-fraction", allowed=size(allowed)), look)


def _beside(s: Story, run: Run) -> tuple[Remedy, ...]:
    other, total = s.figures.other, s.figures.total
    pids = ", ".join(str(p["pid"]) for p in (s.row.get("others") or [])[:5])
    free = remedy("free-other-process", bytes=size(other), pids=f" (process {pids})" if pids else "")
    if not other or not total:
        return (free,)
    return (free, remedy("budget-beside-others", setting=settings_name(run), by=step(other, total)))


def _excess(id: str, s: Story) -> int | None:
    """How much has to be given up, bytes."""
    f = s.figures
    if id == "mem.non_torch" and s.budget.get("budget_bytes") and f.process:
        over = int(f.process - s.budget["budget_bytes"])
        return over if over > 0 else f.short
    if id in ("mem.capture_headroom", "mem.true_exhaustion", "mem.unbudgeted_activation"):
        return f.missing if f.missing is not None and f.missing > 0 else f.short
    return f.short


def _lower(s: Story, run: Run, amount: int | None) -> tuple[Remedy, ...]:
    if amount is None or amount <= 0 or not s.figures.total:
        return ()
    if s.runs > 1 or s.row.get("phase") in ("start", "loading", "profiling"):
        return ()  # the allocation comes before the KV cache is sized: the setting does not touch it
    by = step(amount, s.figures.total)
    if float(by) > 0.5:
        return ()  # nothing would be left for the model
    freed = size(float(by) * s.figures.total)
    return (remedy("lower-utilization", setting=settings_name(run), by=by, bytes=freed),)


def _allocator(s: Story, run: Run) -> tuple[Remedy, ...]:
    """Allocator settings that this release knows and that are safe with the launch settings."""
    text = s.row.get("text") or ""
    named = ENV.search(text)
    if re.search(r"\bXPU out of", text):
        return (remedy("release-cache"),)
    env = named[0] if named else "PYTORCH_CUDA_ALLOC_CONF"
    request_mb = math.ceil((s.figures.request or 0) / (1 << 20))
    split = remedy("max-split-size", env=env, mb=max(min(request_mb, 512), 128))
    others = (split, remedy("gc-threshold", env=env))
    state, words = expandable_check(run, str(s.row["source"]))
    old = re.search(r"\(GPU \d+;", text) is not None  # torch 2.0 and older
    if state in ("blocked", "on") or old or s.row.get("expandable"):
        return others
    return (remedy("expandable-segments", env=env, checked=words), *others)
