"""What is said about one out-of-memory record: claims with their numbers, values and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moexray.core.finding import pairs
from moexray.core.sizes import human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moexray.core.limits.memory import MemoryLimits
    from moexray.diagnose.memory.oom_buffers import Buffers
    from moexray.diagnose.memory.oom_numbers import Decision, Figures

__all__ = ["Story", "figures_text", "no_fragmentation", "size", "tell"]

PHASES = {"loading": "while loading the weights", "profiling": "in the profiling run"}

Told = tuple[str, float | None, float | None, str | None]  # claim, value, limit, unit


@dataclass(frozen=True, slots=True)
class Story:
    """A record with what stands beside it.

    Args:
        row: The row of the table `oom`.
        figures: Its numbers.
        budget: The engine's budget lines: total, budget, weights, non_torch, activation, kv (_bytes).
        runs: Files that hold a record with the same numbers.
        varied: Settings that differ between those runs.
        series: (bytes per token, tokens that still fit, R2) of a growing activation.
        buffers: Predicted all-to-all buffers, if settings and shape give them.
    """

    row: Mapping[str, Any]
    figures: Figures
    budget: Mapping[str, Any]
    runs: int = 1
    varied: tuple[str, ...] = ()
    series: tuple[float, float, float] | None = None
    buffers: Buffers | None = None


def size(value: float | None) -> str:
    """Bytes with two decimals, as the messages print them."""
    return "an unknown amount" if value is None else human_bytes(value, digits=2)


def percent(part: float, whole: float) -> str:
    share = 100 * part / whole if whole else 0.0
    return f"{share:.2f} %" if share < 1 else f"{share:.1f} %"


def figures_text(s: Story) -> str:
    """The numbers that decide, as pairs."""
    f = s.figures
    both = f.free + f.fragments if f.free is not None and f.fragments is not None else None
    share = f.fragments / f.pool if f.fragments is not None and f.pool else None
    values = {
        "request_bytes": f.request,
        "free_bytes": f.free,
        "total_bytes": f.total,
        "process_bytes": f.process,
        "allocated_bytes": f.allocated,
        "fragments_bytes": f.fragments,
        "private_bytes": f.private,
        "reserved_bytes": s.row.get("reserved_bytes"),
        "largest_free_block_bytes": s.row.get("largest_free_bytes"),
        "stuck_bytes": s.row.get("stuck_bytes"),
        "limit_bytes": f.limit,
        "non_torch_bytes": f.non_torch,
        "other_bytes": f.other,
        "short_bytes": f.short,
        "free_plus_fragments_bytes": both,
        "fragments_ratio": share,
        "phase": s.row.get("phase"),
    }
    over = _over_budget(s)
    if over is not None:
        values |= {"budget_bytes": s.budget.get("budget_bytes"), "over_budget_bytes": over}
    if s.buffers is not None:
        values |= {"buffers_bytes": s.buffers.size, "experts": s.buffers.experts, "tokens": s.buffers.tokens}
    values |= {k: s.budget.get(k) for k in ("weights_bytes", "kv_bytes", "activation_bytes", "utilisation")}
    return pairs({k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()})


def tell(d: Decision, s: Story, limits: MemoryLimits) -> Told:
    """(claim, value, limit, unit) of a decision."""
    claim, value, limit, unit = _TELLERS[d.id](s, limits)
    if d.neighbour:
        claim += f" This is at the margin: within the printed rounding it could as well be {d.neighbour}."
    repeats = int(s.row.get("repeats") or 1)
    if repeats > 1:
        claim += f" The message occurs {repeats} times."
    if s.row.get("survived"):
        claim += " As large a request was served later: the process went on."
    return claim, value, limit, unit


def no_fragmentation(s: Story) -> str | None:
    """Why fragmentation does not explain the failure; None where the numbers do not say so."""
    f = s.figures
    if f.fragments is None or f.request is None or f.free is None:
        return None
    share = f" The fragments are {percent(f.fragments, f.pool)} of PyTorch's pool." if f.pool else ""
    if f.missing is not None and f.missing > 0:
        return (
            f"Not fragmentation: {size(f.free)} free + {size(f.fragments)} fragments = "
            f"{size(f.free + f.fragments)} < {size(f.request)} requested, so even perfect compaction would "
            f"not do.{share}"
        )
    if f.free >= f.request:
        return (
            f"Not fragmentation: {size(f.free)} are free for a request of {size(f.request)}, so the "
            f"fragments ({size(f.fragments)}) prove nothing."
        )
    return None


def _over_budget(s: Story) -> int | None:
    budget = s.budget.get("budget_bytes")
    if budget is None or s.figures.process is None:
        return None
    return int(s.figures.process - budget)


def _request(s: Story) -> str:
    where = "" if s.row.get("device") is None else f" on device {s.row['device']}"
    return f"{size(s.figures.request)} were requested{where}"


def _oversubscription(s: Story, _: MemoryLimits) -> Told:
    f = s.figures
    ratio = (f.allocated or 0) / (f.total or 1)
    text = (
        f"{size(f.allocated)} are allocated on a device of {size(f.total)} ({ratio:.2f} times its memory): "
        "the driver spills to host memory, and speed falls long before an error comes."
    )
    return text, ratio, 1.0, "ratio"


def _unexplained(_s: Story, _: MemoryLimits) -> Told:
    text = (
        "An allocation on the device failed, but the message holds no numbers: it cannot be told whether "
        "it was exhaustion, fragmentation, another process or a limit."
    )
    return text, None, None, None


def _limit(s: Story, _: MemoryLimits) -> Told:
    f = s.figures
    times = (f.free or 0) / (f.request or 1)
    text = (
        f"{_request(s)} and refused although the device reports {size(f.free)} free ({times:,.1f} times the "
        "request): a limit below the card's size refused it, not the capacity of the card."
    )
    if f.limit is not None:
        text += f" The message itself names the limit: {size(f.limit)} are allowed to this process."
    else:
        text += (
            " Which limit (memory fraction, MIG or container quota, commit limit of the system), it does "
            "not say."
        )
    return text, f.free, f.request, "bytes"


def _capture(s: Story, _: MemoryLimits) -> Told:
    f, b = s.figures, s.budget
    both = (f.free or 0) + (f.fragments or 0)
    doing = "capturing graphs" if s.row.get("phase") == "capture" else "setting up the KV cache"
    text = (
        f"The server died while {doing}: {size(f.request)} were requested, {size(f.free)} free + "
        f"{size(f.fragments)} fragments = {size(both)}, short by {size(f.missing)}. The budget leaves too "
        "little beside weights and KV cache."
    )
    left = None
    if b.get("utilisation") and f.total:
        left = (1 - b["utilisation"]) * f.total
        text += (
            f" Utilisation {b['utilisation']:g} leaves {size(left)} of {size(f.total)} for everything else."
        )
    text += _budget_sum(b)
    return text, f.missing, left, "bytes"


def _budget_sum(b: Mapping[str, Any]) -> str:
    """The engine's own sum: weights + non-torch + activation + KV against utilisation x total."""
    parts = {n: b.get(f"{n}_bytes") for n in ("weights", "non_torch", "activation", "kv")}
    budget = b.get("budget_bytes")
    if budget is None and b.get("utilisation") and b.get("total_bytes"):
        budget = b["utilisation"] * b["total_bytes"]
    known = {n: v for n, v in parts.items() if v is not None}
    if budget is None or len(known) < 3:
        return ""
    total = sum(known.values())
    words = " + ".join(f"{n.replace('_', '-')} {size(v)}" for n, v in known.items())
    agree = abs(total - budget) <= 0.02 * budget
    link = "as" if agree else "but"
    return f" Budget: {words} = {size(total)}, {link} the engine's own budget is {size(budget)}."


def _other(s: Story, limits: MemoryLimits) -> Told:
    f = s.figures
    named = s.row.get("others") or []
    listed = (
        "; named: " + ", ".join(f"process {p['pid']} with {size(p['bytes'])}" for p in named[:5])
        if named
        else ""
    )
    text = (
        f"{size(f.other)} of {size(f.total)} are held outside this process (total - {size(f.process)} of "
        f"this process - {size(f.free)} free{listed})"
    )
    if (f.missing or 0) > 0:
        text += f", more than the {size(f.missing)} that are missing for the {size(f.request)} requested."
    else:
        text += (
            f"; the {size(f.request)} requested would have fitted into free memory and PyTorch's fragments "
            "together, too."
        )
    return text, f.other, max(limits.other_bytes, f.missing or 0), "bytes"


def _non_torch(s: Story, limits: MemoryLimits) -> Told:
    f = s.figures
    text = (
        f"{size(f.non_torch)} of this process's {size(f.process)} lie outside PyTorch's allocator "
        f"({size(f.allocated)} allocated, {size(f.fragments)} reserved but unallocated) while "
        f"{size(f.request)} were requested: "
    )
    over = _over_budget(s)
    limit = float(s.budget.get("non_torch_bytes") or limits.context_bytes)
    by_budget = over is not None and (f.non_torch or 0) - limit <= max(f.request or 0, f.fragments or 0)
    text += (
        "the process has outgrown its budget." if by_budget else "the main lever is outside PyTorch."
    )
    private = "unknown" if f.private is None else size(f.private)
    if over is not None and over > 0:
        text += (
            f" The process is {size(over)} over the engine's own budget of {size(s.budget['budget_bytes'])}"
        )
        text += (
            f"; graph pools ({private}) explain {percent(f.private, over)} of that."
            if f.private is not None
            else "."
        )
    elif f.private is not None and f.non_torch:
        text += f" Graph pools ({private}, inside the allocated part) are no owner of it."
    if f.fragments is not None and f.request is not None and f.fragments >= f.request:
        text += (
            f" The fragments ({size(f.fragments)}) would have been enough, too: fragmentation is a second, "
            "real cause."
        )
    return (text, over, f.request, "bytes") if by_budget else (text, f.non_torch, limit, "bytes")


def _buffers(s: Story, limits: MemoryLimits) -> Told:
    text, _, _, _ = _non_torch(s, limits)
    b = s.buffers
    if b is None:
        return text, s.figures.non_torch, None, "bytes"
    text += (
        f" The all-to-all buffers account for {size(b.size)} of it: {b.experts} experts x {b.tokens} tokens "
        f"per rank x {b.token_bytes} bytes per token (dispatch + combine) x {b.copies} copies."
    )
    return text, float(b.size), s.figures.non_torch, "bytes"


def _fragmentation(s: Story, _: MemoryLimits) -> Told:
    f = s.figures
    free = "the message does not say what was free" if f.free is None else f"{size(f.free)} were free"
    text = (
        f"{_request(s)} and {free}, while {s.row.get('allocator') or 'PyTorch'} held "
        f"{size(f.fragments)} reserved but unallocated: the fragments alone exceed the request, so "
        "fragmentation by itself explains the failure."
    )
    if f.pool and f.fragments is not None:
        text += f" They are {percent(f.fragments, f.pool)} of its pool of {size(f.pool)}."
    hole = s.row.get("largest_free_bytes")
    if hole is None:
        text += " How large the largest hole is, only an allocator snapshot shows."
    else:
        text += f" The largest hole that the request could have had is {size(hole)}."
    return text, f.fragments, f.request, "bytes"


def _contributes(s: Story, _: MemoryLimits) -> Told:
    f = s.figures
    both = (f.free or 0) + (f.fragments or 0)
    share = f" ({percent(f.fragments or 0, f.pool)} of PyTorch's pool)" if f.pool else ""
    text = (
        f"{_request(s)}: neither {size(f.free)} free nor {size(f.fragments)} of fragments{share} are enough "
        f"alone, together ({size(both)}) they would be. Short by {size(f.short)}."
    )
    return text, f.short, f.fragments, "bytes"


def _activation(s: Story, _: MemoryLimits) -> Told:
    f = s.figures
    text = (
        f"{_request(s)}, the next size of a buffer that grows with the tokens and was not in the profiled "
        "budget"
    )
    value = None
    if s.series is not None:
        value, fit, r2 = s.series
        text += f": {value:,.0f} bytes per token (R2 {r2:.3f})"
        if fit > 0:
            text += (
                f"; with {size((f.free or 0) + (f.fragments or 0))} left, about {fit:,.0f} tokens still fit"
            )
    return text + ".", value, None, "bytes"


def _exhaustion(s: Story, _: MemoryLimits) -> Told:
    f = s.figures
    if f.free is None or f.fragments is None:
        text = (
            f"{_request(s)} and did not fit; the message lacks "
            f"{'the free memory' if f.free is None else 'what PyTorch held unallocated'}, so fragmentation "
            "is not ruled out."
        )
        return text, f.free, f.request, "bytes"
    both = f.free + f.fragments
    verdict = "it does not fit even with perfect compaction"
    if both >= (f.request or 0):
        verdict = "there is hardly more than that"
    text = (
        f"{_request(s)}, {size(f.free)} free + {size(f.fragments)} reserved but unallocated = {size(both)}: "
        f"{verdict}."
    )
    if s.row.get("phase") in PHASES:
        text += f" It happened {PHASES[s.row['phase']]}, before the KV cache is sized."
    if f.pool:
        text += (
            f" The fragments are {percent(f.fragments, f.pool)} of the pool, so an allocator setting cannot "
            "help."
        )
    if s.runs > 1:
        which = (
            f"the settings that differ ({', '.join(s.varied)})"
            if s.varied
            else "whatever setting differs between them"
        )
        text += (
            f" The numbers are identical in {s.runs} runs: {which} do{'' if s.varied else 'es'} not touch "
            "this allocation."
        )
    return text, both, f.request, "bytes"


_TELLERS: dict[str, Callable[[Story, MemoryLimits], Told]] = {
    "mem.oversubscription": _oversubscription,
    "mem.oom_unexplained": _unexplained,
    "mem.limit_below_free": _limit,
    "mem.capture_headroom": _capture,
    "mem.other_process": _other,
    "mem.non_torch": _non_torch,
    "mem.non_torch_buffers": _buffers,
    "mem.fragmentation": _fragmentation,
    "mem.fragmentation_contributes": _contributes,
    "mem.unbudgeted_activation": _activation,
    "mem.true_exhaustion": _exhaustion,
}
