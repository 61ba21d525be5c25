"""Tables about GPU memory: out-of-memory records, allocator statistics, logs of tensors."""

from __future__ import annotations

from moexray.core.schema import Column, Table

__all__ = ["MEMORY_LOG", "MEMORY_STATS", "OOM", "TABLES"]

OOM = Table(
    "oom",
    "Out-of-memory records of PyTorch's allocator (all wordings, CUDA, HIP, XPU).",
    (
        Column("kind", "str", "", "record (numbers), bare (no numbers), warning (failed attempt)."),
        Column("t_s", "float", "s", "Time on the clock of the log, if it has one."),
        Column("rank", "int", "", "Global rank, if the line says so."),
        Column("worker", "str", "", "The worker's name as printed."),
        Column("device", "int", "", "Device index as the message counts."),
        Column("request_bytes", "int", "bytes", "What was asked for."),
        Column("free_bytes", "int", "bytes", "What the device had free."),
        Column("total_bytes", "int", "bytes", "Capacity that the message states."),
        Column("process_bytes", "int", "bytes", "All that this process holds on the device."),
        Column("allocated_bytes", "int", "bytes", "Allocated by PyTorch, private pools included."),
        Column("reserved_bytes", "int", "bytes", "Reserved (cached) by PyTorch in total."),
        Column("fragments_bytes", "int", "bytes", "Reserved but unallocated."),
        Column("private_bytes", "int", "bytes", "Part of allocated in private pools (CUDA graphs)."),
        Column("limit_bytes", "int", "bytes", "Memory this process is allowed, where printed."),
        Column("others", "object", "", "Other processes named: list of {pid, bytes}."),
        Column("rounding", "object", "", "Half a printed unit per field, bytes: {request: 5242.88}."),
        Column("repeats", "int", "", "How often the same record occurs (Ray's 'repeated Nx')."),
        Column("phase", "str", "", "loading, profiling, kv_sizing, capture, serving; null if unknown."),
        Column("earlier", "bool", "", "A later process in the same log started and served."),
        Column("text", "str", "", "The message."),
    ),
)

MEMORY_STATS = Table(
    "memory_stats",
    "Samples of torch.cuda.memory_stats() and the like.",
    (
        Column("t_s", "float", "s", "Time of the sample."),
        Column("rank", "int", "", "Rank, if known."),
        Column("device", "int", "", "Device, if known."),
        Column("allocated_bytes", "int", "bytes", "allocated_bytes.all.current."),
        Column("allocated_peak_bytes", "int", "bytes", "allocated_bytes.all.peak."),
        Column("reserved_bytes", "int", "bytes", "reserved_bytes.all.current."),
        Column("reserved_peak_bytes", "int", "bytes", "reserved_bytes.all.peak."),
        Column("active_bytes", "int", "bytes", "active_bytes.all.current."),
        Column("inactive_split_bytes", "int", "bytes", "inactive_split_bytes.all.current."),
        Column("segments", "int", "", "segment.all.current."),
        Column("num_alloc_retries", "int", "", "Failed device allocations that were retried."),
        Column("num_ooms", "int", "", "Out-of-memory errors raised."),
        Column("step_s", "float", "s", "Step time logged beside the sample, if any."),
        Column("running", "float", "", "Requests or batch size logged beside it (load), if any."),
        Column("per_s", "float", "1/s", "Throughput (tokens, samples) logged beside it, if any."),
    ),
)

MEMORY_LOG = Table(
    "memory_log",
    "Allocations and frees that a program logged itself, in the order of time (arrays, one batch a file). "
    "Attrs of a batch: by_id (frees name their tensor; else they are told by layer, scope, expert and size), "
    "notes (what was guessed or left out).",
    (
        Column("time_ns", "int", "ns", "Time on the clock of the log; left out where it has none."),
        Column("is_alloc", "bool", "", "An allocation; else a free."),
        Column("size_bytes", "int", "bytes", "Size; of a free that names its tensor 0 if not written."),
        Column("key", "int", "", "Hash of the tensor's id, else of layer, scope, expert and size."),
        Column("layer", "int", "", "Layer; -1 unknown."),
        Column("expert", "int", "", "Expert; -1 unknown."),
        Column("scope", "int", "", "Position in core.scopes.SCOPES."),
        Column("site", "int", "", "Index into attrs['sites'], names as written; 0 is none."),
        Column("step", "int", "", "Engine step, token or iteration; -1 unknown."),
        Column("address", "int", "", "Address of the tensor; left out where allocations lack one."),
        Column("rank", "int", "", "Rank; -1 unknown."),
        Column("device", "int", "", "Device; -1 unknown."),
    ),
)

TABLES: tuple[Table, ...] = (OOM, MEMORY_STATS, MEMORY_LOG)
