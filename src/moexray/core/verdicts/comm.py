"""What the verdicts of the comm and a2a families mean: data only."""

from __future__ import annotations

from moexray.core.verdicts.verdict import Verdict

__all__ = ["VERDICTS"]

VERDICTS: tuple[Verdict, ...] = (
    Verdict(
        "comm.desync",
        "Ranks of one process group are in different collectives; they will wait for each other for ever.",
        "Within one group, ranks stand at different numbers (behind is the lowest unfinished one), or at "
        "the same "
        "number in different operations. In recorder dumps an operation that is complete on one rank "
        "although "
        "another never launched that number proves that the numbers no longer match. The same rank ahead in "
        "one "
        "group and behind in another has taken a branch that its peers did not take.",
        "All ranks at the same number and the same operation. Rings that start at different numbers, dumps "
        "of a "
        "live job in which everything is complete, and lines of an earlier process are no evidence.",
        (
            "find the rank-local branch: early return, a step without tokens, a caught exception",
            "keep the recorder on (TORCH_FR_BUFFER_SIZE, old name TORCH_NCCL_TRACE_BUFFER_SIZE) on all ranks",
        ),
        ("flight-recorder dumps of all ranks", "watchdog lines of all ranks"),
    ),
    Verdict(
        "comm.missing_rank",
        "The ranks that report wait in the same operation; the members that do not report are the suspects.",
        "Suspects = members of the group - ranks that wait. Members come from recorder dumps, group lists, "
        "sizes "
        "(all-gather: elements out / elements in) or the order of ranks in the group. All reporters stand "
        "at one "
        "number and operation. An exception in the suspect's own log raises the confidence; a missing dump "
        "of the "
        "suspect is evidence, too.",
        "Membership unknown, more suspects than reporters, or lines swallowed by a log de-duplicator: "
        "cannot tell. "
        "Reporters at different places: comm.desync. Lines that stand before a restart of the engine.",
        (
            "inspect the suspects: log, stack, process state, GPU errors, link",
            "watch token progress, not /health",
        ),
        ("watchdog lines", "recorder dumps", "list of group members", "NCCL status report (RAS)"),
    ),
    Verdict(
        "comm.lagging_ranks",
        "In a live communicator some ranks have launched fewer operations than the others.",
        "Operation counts per rank of one communicator in a status report. The laggards are the ranks with "
        "the low "
        "count, also when the report lists only the smaller set, which is mostly the one that is ahead. The "
        "same "
        "counts in two reports prove that nothing moves.",
        "Two reports in which all counts rise; a difference of one at a single instant is normal under load.",
        ("stacks of the laggards", "a second report after 10 s"),
        ("NCCL status report (ncclras)", "a second one 10 s later"),
    ),
    Verdict(
        "comm.size_mismatch",
        "In a collective that needs one size on all ranks, some ranks brought another.",
        "Same group, number and operation (all-reduce, all-gather, reduce-scatter, broadcast), different "
        "number of "
        "elements or type. The minority is odd, not whoever differs from the first rank.",
        "All-to-all, where sizes may differ; list forms of all-gather, whose inputs may differ; a tie, "
        "where both "
        "sides are named.",
        ("compare code path and shapes of the odd ranks",),
        ("flight-recorder dumps of all ranks", "watchdog lines with NumelIn and NumelOut"),
    ),
    Verdict(
        "comm.slow_transfer",
        "The transfer itself is slow: all ranks had arrived, and the bytes took too long.",
        "Traces of two or more ranks: lateness (longest - shortest duration) < 5 % of the collective's "
        "duration, or < 20 % of what the transfer takes beyond its usual time, and duration - lateness >= 2 "
        "times the median of the same operation and size elsewhere (other steps, groups or ranks). Without "
        "traces: waits per pair of ranks, where a pair, or a rank in both directions, is >= 2 times the "
        "median of all pairs. A transport line (sockets where peers use InfiniBand, a lost NIC) raises the "
        "confidence; alone it cannot tell.",
        "One rank only; arrival skew explains the wait (comm.straggler_wait); bytes grew in proportion "
        "(ep.skew); the times scatter widely instead of forming a slow and a usual heap. A question only: "
        "the host carries the bytes (gloo), whose load looks the same.",
        (
            "check that link: transport lines, NIC state, NCCL_IB_* settings, topology",
            "run again with the pair or the node left out",
        ),
        (
            "traces of at least two ranks of the same steps",
            "transport lines (NCCL_DEBUG=INFO) and link counters",
            "waits per source, as DeepEP statistics give them",
        ),
        ("comm-host-exchange",),
    ),
    Verdict(
        "comm.timeout_near",
        "A collective completed after a wait that was close to the watchdog's limit.",
        "Longest time from created to completed of an operation that completed, >= 50 % of the timeout of "
        "the same "
        "entry. The rank that launched it last is named where its lateness explains half of the wait.",
        "Operations that timed out (then it is a hang), entries without a timeout, waits below half of it.",
        ("mend the late rank; the limit is no remedy",),
        ("flight-recorder dumps of all ranks",),
    ),
    Verdict(
        "comm.no_progress",
        "The engine looks alive but nothing advances.",
        "Token counters equal at two times with requests running, though health checks answer 200; or high "
        "utilisation with idle memory and near-idle power on all ranks for a minute or more.",
        "No requests running, a single sample, active memory.",
        (
            "make liveness depend on token progress",
            "take stacks of all ranks, then look for the missing rank",
        ),
        ("two metrics scrapes", "nvidia-smi series", "stacks"),
    ),
    Verdict(
        "a2a.buffer_limit",
        "A batch is larger than the buffer of the low-latency all-to-all, or ranks disagree on its size.",
        "The library's assertion (x.size(0) <= num_max_dispatch_tokens_per_rank) in a log, with the limit "
        "from the "
        "launch line and the batch from the line before it; or different limits on the ranks of one server.",
        "A timeout without that assertion; different limits of separate servers (prefill and decode).",
        (
            "normal or auto mode for prefill, or a batch cap at the limit",
            "raise the limit on ALL ranks; the buffers grow linearly with it",
        ),
        ("server log", "launch lines or environment of all ranks"),
    ),
    Verdict(
        "a2a.count_mismatch",
        "What was sent is not what was received: a fault of transport or of split sizes; results may be "
        "wrong.",
        "R[j][i] != S[i][j] for a pair of ranks, edge by edge. Header, axes or keys say which index is the "
        "sender; "
        "without labels the order in which the pairs agree is taken. Where only totals exist (recorder "
        "schema "
        "before 2.11): sum of inputs != sum of outputs over the group, and the pair cannot be named.",
        "Sizes that only differ between ranks; cells that differ while the transposed ones agree; matrices "
        "of "
        "different calls.",
        ("distrust the results, pin the versions", "record split sizes per pair"),
        ("send and receive matrices of one call", "flight-recorder dumps of all ranks"),
    ),
    Verdict(
        "a2a.uneven_is_legal",
        "Ranks send different amounts, totals and pairs agree: no fault.",
        "Every pair agrees (or, with totals only, sum of inputs = sum of outputs) while amounts differ. The "
        "cost "
        "follows the busiest rank or link.",
        "Totals or pairs that differ (a2a.count_mismatch).",
        ("nothing",),
        ("send and receive matrices of one call", "flight-recorder dumps of all ranks"),
    ),
    Verdict(
        "a2a.silent_source",
        "Many receivers time out waiting for one and the same sender.",
        ">= 90 % of the receiver-timeout lines name one source rank, GPU or node, from at least two "
        "receivers.",
        "Sources spread over nodes (fabric or settings), or a single receiver that complains (perhaps "
        "itself at "
        "fault): then it is said as cannot tell, and no source is named.",
        ("look at that node first: its log, link, process",),
        ("receiver-timeout lines of all ranks", "transport log", "link counters"),
    ),
)
