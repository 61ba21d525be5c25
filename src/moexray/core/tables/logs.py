"""Tables filled from log text and launch lines."""

from __future__ import annotations

from moexray.core.schema import Column, Table

__all__ = ["LAUNCH", "LOG", "SNAPSHOT_COST", "TABLES"]

LOG = Table(
    "log",
    "Events of an engine's, a runtime's or a kernel's log: one row per line of a known kind.",
    (
        Column("kind", "str", "", "What the line says, e.g. eplb.rearranged, jit.compile, engine.ready."),
        Column("t_s", "float", "s", "Time on the clock of this file; epoch seconds if it has dates."),
        Column("rank", "int", "", "Global rank that wrote the line, if the line says so."),
        Column("device", "int", "", "Device index, if the line says so."),
        Column("worker", "str", "", "The worker's name as printed (DP0 TP1, Worker_EP3, node-0)."),
        Column("level", "str", "", "debug, info, warning, error."),
        Column("line", "int", "", "Line number in the file, from 1."),
        Column("clock", "int", "", "How often the file's clock jumped before; times compare within one."),
        Column("phase", "str", "", "startup or serving, by the ready lines of this file; null if unknown."),
        Column("fields", "object", "", "Numbers and words of the line, by kind; see readers/lines."),
        Column("text", "str", "", "The line itself, without colours and container prefixes."),
    ),
)

LAUNCH = Table(
    "launch",
    "Settings in force: command lines, environments, configuration echoed by an engine.",
    (
        Column("engine", "str", "", "vllm, sglang, tensorrt_llm, torch; null if unknown."),
        Column("key", "str", "", "Option without dashes, lower case with _ (tensor_parallel_size); "
               "an environment variable keeps its case."),
        Column("value", "str", "", "Its value as written; 'True' for a flag without value."),
        Column("origin", "str", "", "command, environment, or log."),
        Column("text", "str", "", "The line it stands in."),
    ),
)

SNAPSHOT_COST = Table(
    "snapshot_cost",
    "Measured time of writing an allocator snapshot, by the length of the recorded history.",
    (
        Column("entries", "int", "", "Entries of the history (max_entries)."),
        Column("traces", "bool", "", "Whether the history was written (include_traces)."),
        Column("seconds", "float", "s", "Time of one snapshot."),
    ),
)

TABLES = (LOG, LAUNCH, SNAPSHOT_COST)
