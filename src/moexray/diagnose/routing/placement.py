"""ep.duplicate_replica and ep.skew_to_oom: a wasted slot; a rank whose tokens broke its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.algorithms.packing import balancedness, rank_loads, swap_duplicate
from moexray.analyse.routing import config, folder
from moexray.analyse.routing_ranks import ep_size, layer_balance, logical_tokens, to_ranks
from moexray.analyse.stated_ep import stated_ep
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.analyse.routing import Load
    from moexray.analyse.routing_ranks import LayerBalance, Ranks
    from moexray.core.finding import Remedy
    from moexray.core.limits import Limits
    from moexray.core.run import Batch, Row, Run

__all__ = ["duplicate_replica", "skew_to_oom"]

SHOWN = 8
NO_GAIN = 5e-4  # of balancedness, which is shown with three decimals


@dataclass(frozen=True, slots=True)
class _Duplicate:
    layer: int
    rank: int
    expert: int
    slots: np.ndarray


def duplicate_replica(run: Run, every: list[Load]) -> list[Finding]:
    """A logical expert twice among the slots of one rank, in one layer."""
    said: list[Finding] = []
    for batch in run.batches("placement"):
        count = _ranks_of(run, every, batch)
        width = batch.columns["slots"].shape[1]
        if not count or width % count or count < 2:
            continue
        found = list(_duplicates(batch, count))
        if found:
            said.append(_duplicate_finding(run, every, batch, found, count))
    return said[:1]


def _ranks_of(run: Run, every: list[Load], batch: Batch) -> int | None:
    if batch.attrs.get("ep_size"):
        return int(batch.attrs["ep_size"])
    if per_rank := batch.attrs.get("slots_per_rank"):
        return int(batch.columns["slots"].shape[1] // int(per_rank))
    if size := config(run, "ep_size") or stated_ep(run)[0]:
        return int(size)
    for load in every:
        if folder(load.source) == folder(batch.source):
            count, _ = ep_size(run, load)
            if count:
                return count
    return None


def _duplicates(batch: Batch, ranks: int) -> list[_Duplicate]:
    found: dict[tuple[int, int, int], _Duplicate] = {}
    slots = batch.columns["slots"]
    grouped = np.sort(slots.reshape(len(slots), ranks, -1), axis=2)
    rows, on, at = np.nonzero((grouped[:, :, 1:] == grouped[:, :, :-1]) & (grouped[:, :, 1:] >= 0))
    for row, rank, i in zip(rows.tolist(), on.tolist(), at.tolist(), strict=True):
        layer = int(batch.columns["layer"][row])
        expert = int(grouped[row, rank, i + 1])
        found[layer, rank, expert] = _Duplicate(layer, rank, expert, slots[row])
    return list(found.values())


def _duplicate_finding(
    run: Run, every: list[Load], batch: Batch, found: list[_Duplicate], ranks: int
) -> Finding:
    first, swap = _best_swap(run, every, batch, found, ranks)
    replicas = int((first.slots == first.expert).sum())
    place = f"layer {first.layer}" if first.layer >= 0 else "the placement"
    claim = (
        f"In {place} EP rank {first.rank} holds expert {first.expert} twice: one of its {replicas} replicas "
        f"is wasted. {len(found)} such pair{'s' if len(found) > 1 else ''} in "
        f"{len(batch.columns['slots'])} layers."
    )
    values: dict[str, object] = {"rank": first.rank, "expert": first.expert, "replicas": replicas,
                                 "slots": len(first.slots), "ranks": ranks}  # fmt: skip
    remedies: tuple[Remedy, ...] = ()
    source = swap.source if swap else ""
    if swap:
        known = bool(source)
        said = (f"{swap.before:.3f}", f"{swap.after:.3f}") if known else ("unknown (no loads)", "unknown")
        partner, partner_rank = int(first.slots[swap.other]), swap.other // (len(first.slots) // ranks)
        remedies = (remedy("swap-replica", slot=swap.slot, other=swap.other, expert=first.expert,
                           rank=first.rank, partner=partner, partner_rank=partner_rank,
                           before=said[0], after=said[1]),)  # fmt: skip
        if known:
            values |= {"before_ratio": swap.before, "after_ratio": swap.after}
            claim += (
                f" Swapping it with expert {partner} on rank {partner_rank} takes balancedness from "
                f"{swap.before:.3f} to {swap.after:.3f}."
                if swap.after - swap.before > NO_GAIN
                else f" On these loads no swap makes the ranks more even ({swap.before:.3f})."
            )
    room = len(first.slots) // ranks
    mine = first.slots[first.rank * room : (first.rank + 1) * room].tolist()
    evidence = [Evidence(batch.source, f"{place}, slots {first.rank * room}-{(first.rank + 1) * room - 1}",
                         f"{pairs(values)} slots_of_rank={mine}")]  # fmt: skip
    evidence += [
        Evidence(batch.source, f"layer {d.layer}", pairs({"rank": d.rank, "expert": d.expert}))
        for d in found if d is not first
    ][:SHOWN]  # fmt: skip
    return Finding(
        "ep.duplicate_replica", "warn", 0.97, claim,
        Subject(rank=first.rank, expert=first.expert, layer=first.layer if first.layer >= 0 else None),
        float(len(found)), 0.0, "count", tuple(evidence), remedies=remedies,
        settle_with=() if source else ("tokens per expert, for the balance before and after",),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Swap:
    """Slots to swap, the balance before and after, and the file of the loads ("": none known)."""

    slot: int
    other: int
    before: float
    after: float
    source: str


def _best_swap(
    run: Run, every: list[Load], batch: Batch, found: list[_Duplicate], ranks: int
) -> tuple[_Duplicate, _Swap | None]:
    """The pair whose swap helps most, of those with the busiest experts."""
    loads = [_load_of(run, every, batch, d) for d in found]
    busiest = sorted(range(len(found)), key=lambda i: -float(loads[i][0][found[i].expert]))[:SHOWN]
    best: tuple[_Duplicate, _Swap | None] = (found[busiest[0]], None)
    for i in busiest:
        d, (load, source) = found[i], loads[i]
        slots = swap_duplicate(load, d.slots, ranks, d.rank, d.expert)
        if slots is None:
            continue
        trial = d.slots.copy()
        trial[list(slots)] = trial[list(slots[::-1])]
        before, after = (balancedness(rank_loads(load, s, ranks)) for s in (d.slots, trial))
        if best[1] is None or after - before > best[1].after - best[1].before:
            best = d, _Swap(*slots, before, after, source)
    return best


def _load_of(run: Run, every: list[Load], batch: Batch, duplicate: _Duplicate) -> tuple[np.ndarray, str]:
    """Tokens per logical expert of that layer, else ones; and the file they come from, the nearest first."""
    experts = int(duplicate.slots.max()) + 1

    def far(load: Load) -> int:
        return 0 if batch.source in load.sources else 1 if folder(load.source) == folder(batch.source) else 2

    for load in sorted((x for x in every if x.what == "routed"), key=far):
        ranks = to_ranks(run, load, 1) if load.axis == "physical" else None
        tokens = load.tokens if load.axis == "logical" else None if ranks is None else logical_tokens(ranks)
        if tokens is not None and tokens.shape[2] >= experts:
            at = np.flatnonzero(load.layers == duplicate.layer)
            y = int(at[0]) if len(at) else 0
            return tokens[:, y].sum(axis=0).astype(np.float64), load.source
    return np.ones(experts), ""


def skew_to_oom(run: Run, every: list[Load], limits: Limits) -> list[Finding]:
    """The rank that fails has most tokens, and its excess tokens explain what was missing."""
    failed = [r for r in run.rows("oom") if r["kind"] == "record" and r["request_bytes"]]
    if not failed:
        return []
    for load in every:
        count, _ = ep_size(run, load)
        used = count and load.what == "routed" and not load.attrs.get("doubtful")
        ranks = to_ranks(run, load, count) if count and used else None
        if ranks is None:
            continue
        sure = [b for b in layer_balance(ranks, limits.routing.chance) if b.by_chance > limits.routing.chance]
        skewed = [b for b in sure if b.balancedness < limits.routing.balancedness]
        if skewed and (found := _hot_failure(run, failed, ranks, max(skewed, key=_excess))):
            return [found]
    return []


def _excess(b: LayerBalance) -> float:
    return float(b.loads.max() - b.loads.mean())


def _rank_of(row: Row, ranks: int) -> int | None:
    for value in (row["rank"], row["device"]):
        if isinstance(value, int) and 0 <= value < ranks:
            return value
    return None


def _hot_failure(run: Run, failed: list[Row], ranks: Ranks, b: LayerBalance) -> Finding | None:
    """The finding, if only the hot rank fails and the arithmetic holds."""
    count = len(b.loads)
    who = {_rank_of(r, count) for r in failed}
    if who != {b.hot}:
        return None
    row = failed[0]
    if row["free_bytes"] is None:
        return None
    short = row["request_bytes"] - row["free_bytes"]
    per_token, source = _bytes_per_token(run, ranks, b)
    steps = len(ranks.load.steps)
    excess = _excess(b) / steps
    explained = excess * per_token if per_token else None
    if explained is not None and row["total_bytes"] and explained > row["total_bytes"]:
        explained = None  # counts of many steps in one row say nothing on one chunk
    if short <= 0 or (explained is not None and explained < short):
        return None
    numbers = {"rank": b.hot, "max_tokens": float(b.loads.max()), "mean_tokens": float(b.loads.mean()),
               "balancedness_ratio": b.balancedness, "bytes_per_token": per_token,
               "excess_bytes": None if explained is None else int(explained),
               "request_bytes": row["request_bytes"], "free_bytes": row["free_bytes"],
               "short_bytes": short}  # fmt: skip
    evidence = [Evidence(row["source"], row["where"], row["text"]),
                Evidence(ranks.load.source, f"layer {b.layer}", pairs(numbers))]  # fmt: skip
    if source is not None:
        evidence.append(Evidence(source["source"], source["where"], source.get("text") or "bytes per token"))
    tokens = f"{b.loads.max() / steps:,.0f} tokens against a mean of {b.loads.mean() / steps:,.0f}"
    claim = f"EP rank {b.hot} ran out of memory and is the rank with most tokens ({tokens}): "
    if explained is None:
        claim += "without the bytes per token it cannot be said whether the excess explains the missing "
        claim += f"{short / 2**20:.0f} MiB."
    else:
        claim += f"the excess of {excess:,.0f} tokens x {per_token:,.0f} bytes = {explained / 2**20:.0f} MiB "
        claim += f"covers the missing {short / 2**20:.0f} MiB (balancedness {b.balancedness:.3f})."
    safe = int(row["free_bytes"] / per_token) if per_token else int(b.loads.mean() / steps)
    return Finding(
        "ep.skew_to_oom", "info" if explained is None else "error", 0.45 if explained is None else 0.9, claim,
        Subject(rank=b.hot, device=row["device"], layer=None if b.layer is None or b.layer < 0 else b.layer),
        explained, float(short), "bytes", tuple(evidence),
        remedies=(remedy("cap-tokens-per-rank", tokens=safe), remedy("router-policy")),
        settle_with=("bytes of activation per token (log, model shape)",) if explained is None else (),
        cost=float(short),
    )  # fmt: skip


def _bytes_per_token(run: Run, ranks: Ranks, b: LayerBalance) -> tuple[float | None, Row | None]:
    """From a log line of the hot rank, of any rank, the file of the counts, or a configuration."""
    lines = [r for r in run.rows("log") if r["kind"] == "moe.activation"]
    lines.sort(key=lambda r: r["fields"].get("ep_rank", r["rank"]) != b.hot)
    if lines:
        return float(lines[0]["fields"]["bytes_per_token"]), lines[0]
    own = ranks.load.attrs.get("bytes_per_token")
    return (float(own) if own else config(run, "bytes_per_token")), None
