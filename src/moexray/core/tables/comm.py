"""Tables about collectives and all-to-all: reports of logs, recorder dumps, matrices, links."""

from __future__ import annotations

from moexray.core.schema import Column, Table

__all__ = [
    "A2A_EVENT",
    "A2A_MATRIX",
    "COMM_FLIGHT",
    "COMM_GROUP",
    "COMM_LINK",
    "COMM_PERF",
    "COMM_RAS",
    "COMM_REPORT",
    "TABLES",
]

COMM_REPORT = Table(
    "comm_report",
    "What a rank says of its own collectives in a log: a timeout, a dump signal, a lost peer, an exception.",
    (
        Column("kind", "str", "", "timeout, dump_signal, lost_peer, exception, stuck, barrier."),
        Column("t_s", "float", "s", "Time on the clock of the file."),
        Column("rank", "int", "", "Global rank that wrote it, if the line says so."),
        Column("group_rank", "int", "", "Rank within the process group."),
        Column("group", "str", "", "Global name of the group (its GUID), else its id on this rank."),
        Column("group_id", "str", "", "Id of the group on this rank (PG ID)."),
        Column("desc", "str", "", "The group's description, e.g. default_pg, ep_group."),
        Column("seq", "int", "", "Number of the collective in its group."),
        Column("op", "str", "", "Operation as printed, e.g. ALLTOALL_BASE."),
        Column("numel_in", "int", "", "Elements given."),
        Column("numel_out", "int", "", "Elements expected."),
        Column("timeout_s", "float", "s", "Limit of the watchdog."),
        Column("ran_s", "float", "s", "How long it had waited."),
        Column("enqueued", "int", "", "Last number that this rank launched; null if it says -1."),
        Column("completed", "int", "", "Last number that this rank completed; null if it says -1."),
        Column("repeats", "int", "", "Lines of other ranks that a log de-duplicator swallowed."),
        Column("named", "object", "", "Ranks that the line itself calls absent (monitoredBarrier)."),
        Column("stale", "bool", "", "True if an engine was started again after this line."),
        Column("text", "str", "", "The line."),
    ),
)

COMM_GROUP = Table(
    "comm_group",
    "Process groups and who is in them; from a recorder dump also how far one rank came.",
    (
        Column("group", "str", "", "Name of the group (in a dump: its global name)."),
        Column("group_id", "str", "", "Id of the group on this rank, if it differs."),
        Column("desc", "str", "", "Description, e.g. tp, dp, ep_group, world."),
        Column("members", "object", "", "Global ranks in it, ascending; null if not stated."),
        Column("size", "int", "", "Number of members, if stated."),
        Column("rank", "int", "", "Rank whose dump says so; null for configurations."),
        Column("enqueued", "int", "", "Last collective that this rank launched; null if unknown."),
        Column("completed", "int", "", "Last collective that this rank completed; null if unknown."),
        Column("origin", "str", "", "dump, list, log."),
    ),
)

COMM_FLIGHT = Table(
    "comm_flight",
    "Entries of flight-recorder dumps, in the order of the ring (arrays, one batch per dump). "
    "Attributes: rank, rank_from (content, name, null), version, library, host, folder, timing (False for "
    "gloo).",
    (
        Column("group", "str", "", "Name of the process group."),
        Column("seq", "int", "", "Number of the collective in its group."),
        Column("op", "str", "", "Operation, e.g. all_to_all, without the library."),
        Column("state", "str", "", "scheduled, started or completed; of gloo it says nothing."),
        Column("p2p", "bool", "", "A send or receive: numbers of different ranks do not belong together."),
        Column("sizes_in", "str", "", "Shapes given, e.g. [[104, 64]]."),
        Column("sizes_out", "str", "", "Shapes expected."),
        Column("numel_in", "float", "", "Elements given; NaN if not recorded."),
        Column("numel_out", "float", "", "Elements expected; NaN if not recorded."),
        Column("dtype", "str", "", "Type of the elements given."),
        Column("splits_in", "object", "", "Rows sent to each peer (schema 2.11 on), else null."),
        Column("splits_out", "object", "", "Rows expected from each peer, else null."),
        Column("created_ns", "float", "ns", "When the host launched it, epoch."),
        Column("started_ns", "float", "ns", "When it was seen running; NaN if not. No rule reads it."),
        Column("completed_ns", "float", "ns", "When it was seen completed, epoch; NaN if not."),
        Column("timeout_s", "float", "s", "Its own limit; NaN if not recorded."),
    ),
)

COMM_RAS = Table(
    "comm_ras",
    "Operation counts of NCCL's status report (ncclras): one row per count and communicator.",
    (
        Column("report", "int", "", "Which report of the file, from 0 (each poll is one)."),
        Column("comm", "str", "", "Hash of the communicator."),
        Column("name", "str", "", "Its number in the report, e.g. #0-0."),
        Column("op", "str", "", "Operation that is counted, e.g. AllGather; 'collective' for all."),
        Column("count", "int", "", "Last operation that these ranks have launched."),
        Column("ranks", "int", "", "How many ranks stand there."),
        Column("listed", "object", "", "Ranks that the report names for this count; [] if none."),
        Column("size", "int", "", "Ranks of the communicator, if the summary says so."),
        Column("gone", "object", "", "Ranks that the report calls missing (INCOMPLETE, DEAD)."),
        Column("text", "str", "", "The lines."),
    ),
)

COMM_PERF = Table(
    "comm_perf",
    "Collectives and sends that NCCL Inspector timed, one row per rank and operation (arrays). Ranks are "
    "those in the communicator. Attributes: comms (ids), names (of the communicators), ops, timings (texts "
    "of "
    "the columns that hold indices).",
    (
        Column("comm", "int", "", "Index into attrs['comms']."),
        Column("rank", "int", "", "Rank in the communicator."),
        Column("ranks", "int", "", "Ranks of the communicator; -1 unknown."),
        Column("op", "int", "", "Index into attrs['ops'] (AllReduce, Send, ...)."),
        Column("seq", "int", "", "Number of the operation; -1 unknown."),
        Column("peer", "int", "", "The other side of a send; -1 for collectives. No rule reads it."),
        Column("bytes", "int", "bytes", "Size of the message; -1 unknown."),
        Column("exec_s", "float", "s", "Execution time as reported."),
        Column("bus_gbs", "float", "GB/s", "Bus bandwidth as reported. No rule reads it."),
        Column("timing", "int", "", "Index into attrs['timings'] (kernel_gpu, kernel_cpu, collective_cpu)."),
        Column("start_ns", "int", "ns", "First kernel start, epoch (verbose dumps), else -1."),
        Column("dumped_ns", "int", "ns", "When the record was written, epoch; -1 unknown."),
    ),
)

COMM_LINK = Table(
    "comm_link",
    "Transports and faults of links, from NCCL_DEBUG lines.",
    (
        Column("kind", "str", "", "init, channel, destroy, warn."),
        Column("comm", "str", "", "commId of the communicator, else its address in the process."),
        Column("process", "str", "", "host:pid of the writer."),
        Column("rank", "int", "", "Rank of the writer in the communicator."),
        Column("ranks", "int", "", "Ranks of the communicator."),
        Column("src", "int", "", "Sender of the channel."),
        Column("dst", "int", "", "Receiver of the channel."),
        Column("via", "str", "", "P2P, SHM, NET/IB, NET/Socket, NVLS, ..."),
        Column("destroyed", "bool", "", "True if this communicator was torn down later in the file."),
        Column("text", "str", "", "The line."),
    ),
)

A2A_MATRIX = Table(
    "a2a_matrix",
    "Matrices over pairs of ranks (arrays, one batch per matrix). Attributes: name, rows_are (sender, "
    "receiver, "
    "null), quantity (sent, received, wait, null), quantity_from (content, name), unit, slice, size.",
    (
        Column("row", "int", "", "Rank that the row stands for."),
        Column("col", "int", "", "Rank that the column stands for."),
        Column("value", "float", "", "Tokens, elements, bytes or time, as the file counts."),
    ),
)

A2A_EVENT = Table(
    "a2a_event",
    "Lines of all-to-all libraries (DeepEP and its kin): timeouts, assertions, limits, batch sizes.",
    (
        Column("kind", "str", "", "timeout, cpu_timeout, assertion, limit."),
        Column("t_s", "float", "s", "Time on the clock of the file."),
        Column("rank", "int", "", "Rank that wrote it, if known."),
        Column("worker", "str", "", "Worker label of the line, if known."),
        Column("phase", "str", "", "dispatch or combine."),
        Column("role", "str", "", "receiver, sender, forwarder."),
        Column("receiver", "str", "", "Who waited: node/gpu or rank."),
        Column("src_node", "int", "", "Node (RDMA rank) of the awaited sender."),
        Column("src_gpu", "int", "", "GPU (NVLink rank) of the awaited sender on its node."),
        Column("src_rank", "int", "", "Global rank of the awaited sender."),
        Column("limit", "int", "tokens", "Most tokens that a rank may dispatch on the low-latency path."),
        Column("batch", "int", "tokens", "Tokens of the batch that this worker logged last."),
        Column("batch_text", "str", "", "The line with the batch."),
        Column(
            "scope", "str", "", "Which server instance a limit belongs to (mode, model), as far as known."
        ),
        Column("node", "str", "", "Node or rank that a limit is set for, if the line says so."),
        Column("stale", "bool", "", "True if an engine was started again after this line."),
        Column("text", "str", "", "The line."),
    ),
)

TABLES: tuple[Table, ...] = (
    COMM_REPORT,
    COMM_GROUP,
    COMM_FLIGHT,
    COMM_RAS,
    COMM_PERF,
    COMM_LINK,
    A2A_MATRIX,
    A2A_EVENT,
)
