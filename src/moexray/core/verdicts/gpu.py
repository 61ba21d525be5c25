"""What the verdicts of the gpu subject mean: data only."""

from __future__ import annotations

from moexray.core.verdicts.verdict import Verdict

__all__ = ["VERDICTS"]

VERDICTS: tuple[Verdict, ...] = (
    Verdict(
        "smi.unified_memory",
        "On this device framebuffer numbers are not available by design: unknown, not zero.",
        "Total, used and free are all N/A or Not Supported while other fields of the device have values.",
        "One field only is missing, or a field is not permitted (input.missing_values).",
        ("Use MemTotal and MemAvailable of the host and the per-process list.",),
        ("nvidia-smi table, -q or CSV", "/proc/meminfo"),
    ),
    Verdict(
        "smi.mig_limit",
        "The process runs in a MIG instance, whose memory is its limit, not the card's.",
        "MIG instances are listed, and the total of the out-of-memory record equals an instance's total "
        "(2 %) and not the card's.",
        "There is no list of MIG instances, or the total is the card's.",
        ("Use a larger profile, or size the budget to the instance.",),
        ("nvidia-smi table, -q or -q -x with its MIG part", "out-of-memory record"),
    ),
    Verdict(
        "smi.throttled",
        "The GPU lowered its clocks under load because of power or heat.",
        "A power or thermal slowdown is active in >= 20 % of the samples under load (utilisation >= 50 %, "
        "per device) and their median SM clock lies >= 15 % below that of the device's other samples under "
        "load. One sample only: info.",
        "The flags stand in idle samples only (gpu_idle is no slowdown), application clocks were set by "
        "the user, or the clocks did not fall.",
        ("Check cooling, power limit and neighbours; compare the ranks' clocks.",),
        ("nvidia-smi series with clock event reasons, clocks.sm and utilization.gpu", "dmon -s puc", "DCGM"),
    ),
    Verdict(
        "smi.gpu_lost",
        "The driver no longer reaches the GPU.",
        "The tool says 'GPU is lost', or ERR! or Unknown Error stand to the end in fields of a device that "
        "answered before.",
        "A field is only not permitted or not supported; the device answers again later.",
        ("Drain the node, read the kernel log for Xid messages, reset or reboot.",),
        ("nvidia-smi in any form", "kernel log"),
    ),
    Verdict(
        "mem.cached_not_leaked",
        "nvidia-smi shows memory that PyTorch keeps cached and can reuse; nothing leaks.",
        "In use - reserved is a normal context (<= 1.5 GiB), and reserved - allocated is at least half of "
        "reserved; no out-of-memory error.",
        "Allocated memory grows from sample to sample.",
        ("Nothing. torch.cuda.empty_cache() once at idle, if another process needs the memory.",),
        ("memory_stats and nvidia-smi of the same time",),
    ),
    Verdict(
        "mem.growth_unattributed",
        "Memory in use grows with traffic and does not come back; the owner is not known yet.",
        "Medians of six windows at like load (requests running within 15 %, else utilisation): they rise by "
        "more than 5 % of the total (total unknown: of the first value), in at least three windows, and do "
        "not come to rest. Where memory_stats stand beside, the growth is split into reserved and the rest.",
        "The growth comes to rest or follows the load; one sample only.",
        ("Take two pairs of memory_stats and nvidia-smi under load, then an allocator snapshot.",),
        ("nvidia-smi series", "memory_stats series", "requests running over the same time"),
    ),
    Verdict(
        "mem.fragmentation_drift",
        "Fragmentation rises over the life of the server, and step times with it.",
        "At like load, fragments / reserved rises by >= 0.05 in at least three windows, and its rank "
        "correlation with the step time is >= 0.7.",
        "Load changed as well; two points only; step times do not follow.",
        ("Clean up at task boundaries on EVERY rank; an allocator setting only after a replay.",),
        ("memory_stats series with step times and load",),
    ),
)
