"""Remedies of the gpu subject: data only."""

from __future__ import annotations

from moexray.core.finding import Remedy

__all__ = ["REMEDIES"]

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "use-meminfo",
        "Budget with MemTotal and MemAvailable of /proc/meminfo and with the per-process list "
        "(nvidia-smi --query-compute-apps=pid,used_memory --format=csv).",
        "Nothing was changed.",
        "Host and device share this memory: page cache counts as available, not as free.",
    ),
    Remedy(
        "larger-mig-profile",
        "Use a larger MIG profile, or size weights, KV cache and batch to the instance's {bytes}.",
        "Create the old profile again.",
        "Changing profiles needs every process off the card.",
    ),
    Remedy(
        "cool-or-cap",
        "Check cooling and air flow, the power limit (nvidia-smi -q -d POWER,TEMPERATURE) and the load of "
        "neighbours; give all ranks the same power limit.",
        "Set the old power limit again (nvidia-smi -pl).",
        "One slowed rank makes every other wait in each collective: compare the ranks' clocks.",
    ),
    Remedy(
        "drain-node",
        "Drain the node and read the kernel log for Xid messages (dmesg | grep -i xid); reset or reboot "
        "before it serves again.",
        "Let the node serve again.",
        "A GPU that was lost once is often lost again: have it tested.",
    ),
    Remedy(
        "empty-cache-once",
        "Nothing is needed. If another process needs the memory, call torch.cuda.empty_cache() once at idle.",
        "Nothing was changed.",
        "Never in the step loop: the next steps must allocate again.",
    ),
    Remedy(
        "attribute-growth",
        "Take two pairs of torch.cuda.memory_stats() and nvidia-smi under load, minutes apart; if reserved "
        "grows, record the allocation history between two snapshots.",
        "Switch the recording off.",
        "nvidia-smi cannot tell who owns the growth, nor how large the largest free block is.",
    ),
    Remedy(
        "clean-at-boundaries",
        "Call torch.cuda.empty_cache() at task boundaries while idle, on EVERY rank at the same time.",
        "Remove the call.",
        "On one rank only it makes the others wait.",
    ),
)
