"""Tables about devices as the driver sees them: samples, processes, MIG instances, links, messages."""

from __future__ import annotations

from moexray.core.schema import Column, Table

__all__ = ["GPU", "GPU_EVENT", "GPU_LINK", "GPU_PROCESS", "MEMINFO", "MIG", "SANITIZER", "TABLES"]

GPU = Table(
    "gpu",
    "Samples of whole devices (nvidia-smi in every form): one row per device and sample (arrays, one batch "
    "a file and form). NaN is unknown. Facts of the batch: form (table, q, query, dmon, xml), driver, "
    "names {key: product}, mig {key: True if MIG is enabled}.",
    (
        Column("t_s", "float", "s", "Time on the clock of the file; epoch where it has a date."),
        Column("device", "int", "", "Index as nvidia-smi counts; -1 if the file does not tell."),
        Column("key", "str", "", "Tells devices of a file apart: index, UUID or bus id."),
        Column("total_bytes", "float", "bytes", "Framebuffer memory of the device."),
        Column("reserved_bytes", "float", "bytes", "Reserved by driver and firmware; in used before 510."),
        Column("used_bytes", "float", "bytes", "Framebuffer memory in use by all processes."),
        Column("free_bytes", "float", "bytes", "Framebuffer memory not in use, in sum."),
        Column("util_ratio", "float", "ratio", "Share of the sample period with any kernel running."),
        Column("mem_util_ratio", "float", "ratio", "Share of the sample period with memory traffic."),
        Column("sm_mhz", "float", "MHz", "Clock of the multiprocessors."),
        Column("sm_max_mhz", "float", "MHz", "Highest clock of the multiprocessors."),
        Column("power_w", "float", "W", "Power drawn."),
        Column("power_limit_w", "float", "W", "Power limit in force."),
        Column("temp_c", "float", "degC", "Temperature of the GPU."),
        Column("flags", "str", "", "Active clock reasons ('sw_power_cap gpu_idle'); '?' if not asked."),
        Column("errors", "str", "", "Fields that read ERR!, Unknown Error or GPU is lost."),
        Column("missing", "str", "", "Fields that are N/A, not supported or not permitted; '' if none."),
        Column("line", "int", "", "Line of the file, from 1; -1 if it has none."),
    ),
)

GPU_PROCESS = Table(
    "gpu_process",
    "Processes that nvidia-smi lists on a device.",
    (
        Column("t_s", "float", "s", "Time of the list, if known."),
        Column("device", "int", "", "Index as nvidia-smi counts, if known."),
        Column("key", "str", "", "The device's key, as in table gpu."),
        Column("instance", "int", "", "GPU instance of MIG, if any."),
        Column("pid", "int", "", "Process id; null in containers."),
        Column("kind", "str", "", "C compute, G graphics, C+G, M for MPS."),
        Column("name", "str", "", "Name or command, may be cut by nvidia-smi."),
        Column("used_bytes", "int", "bytes", "Memory of the process on the device."),
    ),
)

MIG = Table(
    "mig",
    "MIG instances and their memory.",
    (
        Column("device", "int", "", "Index of the card, if known."),
        Column("key", "str", "", "The card's key, as in table gpu."),
        Column("instance", "int", "", "GPU instance id."),
        Column("compute", "int", "", "Compute instance id."),
        Column("index", "int", "", "MIG device index."),
        Column("total_bytes", "int", "bytes", "Memory of the instance."),
        Column("used_bytes", "int", "bytes", "Memory in use in it."),
    ),
)

GPU_EVENT = Table(
    "gpu_event",
    "Messages of the driver's tool instead of numbers.",
    (
        Column("kind", "str", "", "lost, no_devices, no_driver, mismatch, reset_needed."),
        Column("t_s", "float", "s", "Time on the clock of the file, if known."),
        Column("device", "int", "", "Index, if the message tells it."),
        Column("bus", "str", "", "Bus id, if the message tells it."),
        Column("text", "str", "", "The line."),
    ),
)

GPU_LINK = Table(
    "gpu_link",
    "Topology of a node (nvidia-smi topo -m). No rule reads it: `moexray inspect --save` keeps it, to "
    "hold against a slow link.",
    (
        Column("a", "str", "", "One end, e.g. GPU0."),
        Column("b", "str", "", "Other end, e.g. GPU1, NIC0."),
        Column("link", "str", "", "NV18, PIX, PXB, PHB, NODE, SYS, ..."),
    ),
)

MEMINFO = Table(
    "meminfo",
    "Memory of the host (/proc/meminfo).",
    (
        Column("total_bytes", "int", "bytes", "MemTotal."),
        Column("available_bytes", "int", "bytes", "MemAvailable."),
        Column("free_bytes", "int", "bytes", "MemFree."),
        Column("text", "str", "", "The lines read."),
    ),
)

SANITIZER = Table(
    "sanitizer",
    "Records of compute-sanitizer or cuda-memcheck. Told beside the findings; no rule judges them, as a "
    "record states its fault itself.",
    (
        Column("tool", "str", "", "memcheck, racecheck, initcheck, synccheck; null if unknown."),
        Column("what", "str", "", "First line of the record, e.g. Invalid __global__ read of size 4 bytes."),
        Column("kernel", "str", "", "Kernel, if named."),
        Column("site", "str", "", "file:line, if named."),
        Column("detail", "str", "", "Address and nearest allocation, as printed."),
        Column("count", "int", "", "For a summary: errors in total."),
    ),
)

TABLES: tuple[Table, ...] = (GPU, GPU_PROCESS, MIG, GPU_EVENT, GPU_LINK, MEMINFO, SANITIZER)
