"""`moexray timeline`: communication of a rank, exposed or not; exchanges against what they should cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.limits.comm import CommLimits
from moexray.faces.numbers import human

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moexray.analyse.timeline import Profile
    from moexray.analyse.timeline_comm import Collectives

__all__ = ["conclusion", "exchange_rows", "exchange_text", "of_rank"]

ABOUT = 0.05  # share of the span from which a conclusion names something
IDLE = 0.2  # share of the span from which an idle device is worth a word
FASTER = 1.2  # utilisation above which the assumed links cannot be the real ones
WELL = 0.5  # utilisation from which an exchange is limited by its bytes


def of_rank(c: Collectives, profile: Profile) -> dict[str, Any]:
    """Seconds of a rank: compute, copies and fills without it, communication, of it exposed, and waiting.

    Communication is exposed while nothing else runs.
    `others_waited_s` is what the first to come waited for this rank; null where no other rank was matched.
    """
    import numpy as np

    from moexray.analyse.timeline import KERNEL, Cover

    works = np.setdiff1d(np.flatnonzero(profile.of(KERNEL)), profile.comm_rows)
    compute = int(Cover(profile.start[works], profile.end[works]).total[-1])
    comm = Cover(profile.start[profile.comm_rows], profile.end[profile.comm_rows])
    hidden = profile.compute.within(comm.start, comm.end)
    out: dict[str, Any] = {
        "compute_s": compute / 1e9,
        "copies_alone_s": (int(profile.compute.total[-1]) - compute) / 1e9,
        "communication_s": float((comm.end - comm.start).sum()) / 1e9,
        "exposed_communication_s": float((comm.end - comm.start - hidden).sum()) / 1e9,
        "waited_s": None, "others_waited_s": None, "waited_most_for": None,
        "profiled_with_stacks": bool(profile.attrs.get("with_stack")),
    }  # fmt: skip
    if len(c) and profile in c.profiles:
        rank = c.profiles.index(profile)
        wait = np.where(c.present[rank], c.duration[rank] - c.transfer, 0.0)
        by = np.bincount(c.cause, wait, minlength=len(c.profiles))
        most = int(by.argmax())
        out |= {
            "waited_s": float(wait.sum()) / 1e9,
            "others_waited_s": float(c.fresh[c.cause == rank].sum()) / 1e9,
            "waited_most_for": c.profiles[most].rank if by[most] > 0 else None,
        }
    return out


def conclusion(r: dict[str, Any], main: dict[str, Any] | None) -> str:
    """One line: how the time of a rank divides, and what that says.

    Args:
        r: Row of `ranks`.
        main: Row of `streams` of the one with most compute.
    """
    span = r["span_s"] or 1.0
    exposed, hidden = r["exposed_communication_s"], r["communication_s"] - r["exposed_communication_s"]
    copies = r["copies_alone_s"]
    parts = [f"computes {r['compute_s'] / span:.0%}"]
    if copies / span >= ABOUT:
        parts.append(f"copies alone {copies / span:.0%}")
    parts += [f"communicates alone {exposed / span:.0%}"]
    if hidden / span >= ABOUT:
        parts.append(f"(and {hidden / span:.0%} behind compute)")
    idle = 1 - r["busy_s"] / span
    parts.append(f"idle {idle:.0%}")
    said = f"{', '.join(parts).replace(', (', ' (')}"
    if r["waited_s"] is None:
        alone = "; other ranks' traces would tell waiting from transfer"
        return said + (alone if exposed > ABOUT * span else f": {by}" if (by := _by_host(r, main)) else "")
    if r["others_waited_s"] >= ABOUT * span and r["others_waited_s"] >= r["waited_s"]:
        waited = human(r["others_waited_s"], "s")
        return f"{said}: the others wait {waited} for it, so look at what it does before it comes"
    if r["waited_s"] >= ABOUT * span:
        waited = human(r["waited_s"], "s")
        return f"{said}: it waits {waited} in collectives, most for rank {r['waited_most_for']}"
    if idle >= ABOUT:
        by_host = _by_host(r, main)
        return f"{said}: {by_host or 'the device runs out of work (see the idle time of its streams)'}"
    return f"{said}: nothing here holds it up"


def _by_host(r: dict[str, Any], main: dict[str, Any] | None) -> str:
    """That the host cannot launch fast enough; "" where the device is not idle for it."""
    idle = 1 - r["busy_s"] / (r["span_s"] or 1.0)
    gaps = main["span_ns"] - main["busy_ns"] if main else 0
    own = sum(main["host"].get(k, 0) for k in ("operator", "python", "launch")) if main else 0
    if idle < IDLE or not gaps or own < gaps / 2:
        return ""
    stacks = " (profiled with stacks, which slows the host: read no latency from it)"
    return "CPU-bound" + (stacks if r["profiled_with_stacks"] else "")


def exchange_rows(c: Collectives, host: Mapping[int, str]) -> list[dict[str, Any]]:
    """Rows of `exchanges`: all-to-alls against alpha-beta."""
    if not len(c):
        return []
    from moexray.analyse.exchange_cost import exchanges

    limits = CommLimits()
    known = bool(host)
    return [
        {
            "op": x.op, "group": x.group, "exchanges": x.count, "ranks": x.ranks, "hot_rank": x.hot_rank,
            "hot_bytes": round(x.hot_bytes), "mean_bytes": round(x.mean_bytes),
            "between_nodes_bytes": round(x.between_bytes) if known else None,
            "nodes": len(set(host.values())) if known else None, "transfer_s": x.transfer_s,
            "cost_s": x.cost_s, "utilisation_ratio": x.utilisation,
            "bytes_per_s": x.hot_bytes / x.transfer_s if x.transfer_s > 0 else None,
            "assumed_node_bytes_per_s": limits.node_bytes_per_s,
            "assumed_net_bytes_per_s": limits.net_bytes_per_s, "assumed_alpha_s": limits.exchange_alpha_s,
        }
        for x in exchanges(c, host, limits)
    ]  # fmt: skip


def exchange_text(rows: list[dict[str, Any]]) -> list[str]:
    """Exchanges in words."""
    if not rows:
        return []
    first = rows[0]
    place = f"{first['nodes']} nodes, by NCCL's log" if first["nodes"] else "one node, as no NCCL log says"
    inside, between = first["assumed_node_bytes_per_s"] / 1e9, first["assumed_net_bytes_per_s"] / 1e9
    assumed = f"{inside:.0f} GB/s inside a node, {between:.0f} GB/s between nodes"
    out = ["", f"all-to-alls against alpha-beta ({place}; {assumed}):"]
    for r in rows:
        skew = r["hot_bytes"] / r["mean_bytes"] if r["mean_bytes"] else 1.0
        moved = f"{human(r['hot_bytes'], 'bytes')} ({skew:.2f}x the mean)"
        took, cost = human(r["transfer_s"], "s"), human(r["cost_s"], "s")
        out.append(
            f"  {r['op']}: rank {r['hot_rank']} moves most, {moved} in {took}; should take {cost}: "
            f"{r['utilisation_ratio']:.0%} used, so {_bound(r)}"
        )
    return out


def _bound(r: dict[str, Any]) -> str:
    if r["utilisation_ratio"] > FASTER:
        return "the links are faster than assumed"
    if r["assumed_alpha_s"] * (r["ranks"] - 1) >= r["cost_s"] / 2:
        return "its handshakes set its time, not its bytes"
    if r["utilisation_ratio"] >= WELL:
        return "its bytes set its time"
    return "something else than its bytes sets its time"
