"""Tables of timelines: slices of host threads and GPU streams, collectives, memory marks.

Glossary: a *slice* is an event with a start and a duration; a *lane* is a host thread or a GPU
stream; names, lanes and further texts of a file stand in the attrs of its batch, rows hold indices.
"""

from __future__ import annotations

from moexray.core.schema import Column, Table

__all__ = ["CATEGORIES", "PROFILE_SUM", "TABLES", "TRACE", "TRACE_COMM", "TRACE_MEMORY"]

# Codes of TRACE.category, by position.
CATEGORIES = (
    "other",
    "kernel",
    "memcpy",
    "memset",
    "runtime",
    "driver",
    "operator",
    "annotation",
    "gpu_annotation",
    "python",
    "overhead",
    "sync",
)

TRACE = Table(
    "trace",
    "Slices of a profile (Kineto, Nsight Systems), one batch a file. Attrs of a batch: names, lanes "
    "(process, thread, label), rank, world_size, groups, devices, format, base_ns, resolution_ns, note.",
    (
        Column("ts_ns", "int", "ns", "Start; epoch time where the file tells its base."),
        Column("dur_ns", "int", "ns", "Duration; 0 is legal."),
        Column("category", "int", "", "Index into CATEGORIES (kernel, runtime, operator, ...)."),
        Column("name", "int", "", "Index into attrs['names']."),
        Column("lane", "int", "", "Index into attrs['lanes']."),
        Column("device", "int", "", "Device index; -1: not a device slice."),
        Column("stream", "int", "", "Stream of the device; -1: not a device slice."),
        Column("correlation", "int", "", "Joins a launch and its kernels; -1: none."),
        Column("bytes", "int", "bytes", "Bytes of a copy or fill; -1: none."),
    ),
)

TRACE_COMM = Table(
    "trace_comm",
    "Metadata of collectives, one row for each slice that carries them; batches as in `trace`.",
    (
        Column("row", "int", "", "Row of the slice in the trace batch of the same file."),
        Column("collective", "str", "", "all_to_allv, allreduce, ... as written; null if unknown."),
        Column("group", "str", "", "Process group name; null if unknown."),
        Column("group_size", "int", "", "Members of the group; -1 unknown."),
        Column("ranks", "str", "", "Members as written, may be cut ('[0, 1, ...]')."),
        Column("seq", "int", "", "Sequence number in the group; -1 unknown."),
        Column("in_elements", "int", "", "Elements that this rank sends; -1 unknown."),
        Column("out_elements", "int", "", "Elements that this rank receives; -1 unknown."),
        Column("dtype", "str", "", "Type of the elements as written."),
        Column("in_splits", "str", "", "Rows sent to each rank, as written; '[]' is even."),
        Column("out_splits", "str", "", "Rows received from each rank, as written; '[]' is even."),
    ),
)

TRACE_MEMORY = Table(
    "trace_memory",
    "Allocator events inside a profile (profile_memory=True).",
    (
        Column("ts_ns", "int", "ns", "Time on the clock of the trace batch of the same file."),
        Column("lane", "int", "", "Index into attrs['lanes'] of the trace batch."),
        Column("device", "int", "", "Device index, CUDA or HIP; -1 is host memory."),
        Column("address", "int", "", "Address of the block."),
        Column("bytes", "int", "bytes", "Size; negative for a free."),
        Column("allocated_bytes", "int", "bytes", "Allocated on the device after the event; -1 unknown."),
        Column("reserved_bytes", "int", "bytes", "Reserved on the device after the event; -1 unknown."),
    ),
)

PROFILE_SUM = Table(
    "profile_sum",
    "Sums of a profiler's report (nsys stats): what took how long, without times. No rule reads it: sums "
    "cannot say who waited for whom. `moexray inspect --save` keeps it.",
    (
        Column("kind", "str", "", "kernel, call (of an API), copy (or fill), range (NVTX)."),
        Column("name", "str", "", "Kernel, call, direction of the copy, or range, as written."),
        Column("count", "int", "", "How many there were."),
        Column("total_s", "float", "s", "Sum of their durations."),
        Column("mean_s", "float", "s", "Mean duration."),
        Column("median_s", "float", "s", "Median duration."),
        Column("least_s", "float", "s", "Shortest."),
        Column("most_s", "float", "s", "Longest."),
        Column("std_s", "float", "s", "Standard deviation of the durations."),
    ),
)

TABLES: tuple[Table, ...] = (TRACE, TRACE_COMM, TRACE_MEMORY, PROFILE_SUM)
