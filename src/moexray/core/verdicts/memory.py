"""What the verdicts of the memory subject mean: data only."""

from __future__ import annotations

from moexray.core.verdicts.verdict import Verdict

__all__ = ["VERDICTS"]

RECORD = ("an out-of-memory message of PyTorch with its numbers",)

VERDICTS: tuple[Verdict, ...] = (
    Verdict(
        id="mem.fragmentation",
        means="Memory that PyTorch holds but cannot hand out is by itself large enough for what failed.",
        decided="Message: reserved but unallocated >= requested, and free memory alone is not enough. "
        "Snapshot: inactive bytes in segments that still hold an active block >= 1 GiB and >= 25 % of what "
        "is reserved.",
        refuted="Free memory covers the request; or free + fragments together are still less than the "
        "request. The largest hole needs a snapshot: nvidia-smi cannot show it.",
        do=(
            "Without custom all-reduce (tensor parallelism) and sleep mode: expandable segments.",
            "Else max_split_size_mb or garbage_collection_threshold; replay the history before deciding.",
        ),
        needs=(*RECORD, "or an allocator snapshot"),
        remedies=("snapshot-move-pins",),
    ),
    Verdict(
        id="mem.fragmentation_contributes",
        means="Neither free memory nor the fragments alone cover the request, together they would.",
        decided="free + fragments >= requested > the larger of the two, and fragments above the printed "
        "rounding.",
        refuted="The fragments alone suffice (mem.fragmentation), or both together do not "
        "(mem.true_exhaustion).",
        do=(
            "More headroom first: lower the utilisation setting by short / total, rounded up to 0.01.",
            "Cap the tokens of one step.",
            "Allocator settings second, after the same checks as for mem.fragmentation.",
        ),
        needs=RECORD,
    ),
    Verdict(
        id="mem.true_exhaustion",
        means="The request does not fit even if every fragment could be used.",
        decided="free + fragments < requested, and no other test of the order says yes. The same numbers "
        "in runs that differ in one setting: that setting does not touch this allocation.",
        refuted="Any earlier test: a limit, another process, memory outside PyTorch, fragments that suffice.",
        do=(
            "Smaller peak: chunked prefill, fewer batched tokens, shorter context.",
            "More shards or quantised weights.",
            "No allocator setting can help.",
        ),
        needs=RECORD,
    ),
    Verdict(
        id="mem.limit_below_free",
        means="The device reports enough free memory, so a limit below the card's size refused the request.",
        decided="free - requested > the printed rounding + 2 MiB, and > 5 % of the request.",
        refuted="Free memory exceeds the request by less than that.",
        do=("Look at the memory fraction of the process, MIG profile, container quota, commit limit.",),
        needs=(*RECORD, "launch line, nvidia-smi -q"),
    ),
    Verdict(
        id="mem.other_process",
        means="A large part of the card is held outside this process.",
        decided="total - this process - free > 512 MiB and more than what is missing beside free and "
        "fragments.",
        refuted="The message names no process; the gap is what the driver reserves (total of nvidia-smi "
        "minus total of PyTorch).",
        do=("Free it, or lower the utilisation setting by other / total.",),
        needs=(*RECORD, "or the process list of nvidia-smi"),
    ),
    Verdict(
        id="mem.oversubscription",
        means="More is allocated than the card holds; the driver spills to host memory and speed collapses.",
        decided="allocated > total; or throughput falls to a third exactly where the peak passes the "
        "card's memory.",
        refuted="Memory stays below total in every sample.",
        do=("Keep the peak below total; on Windows switch the system-memory fallback off.",),
        needs=(*RECORD, "or peaks beside throughput"),
    ),
    Verdict(
        id="mem.non_torch",
        means="Much of the process's memory lies outside PyTorch's allocator, and that is the main lever.",
        decided="process - allocated - fragments - 1.5 GiB (or the engine's own non-torch line) > the "
        "larger of request and fragments; or the process exceeds the engine's own budget by more than the "
        "request.",
        refuted="The process size is unknown; the excess is below request and fragments.",
        do=(
            "Lower the utilisation setting by excess / total.",
            "Two memory_stats + nvidia-smi pairs under load.",
        ),
        needs=(*RECORD, "or memory_stats and nvidia-smi together"),
    ),
    Verdict(
        id="mem.non_torch_buffers",
        means="The memory outside PyTorch is mostly the all-to-all buffers, whose size follows from the "
        "settings.",
        decided="experts x dispatch tokens per rank x bytes per token (dispatch + combine) x copies is at "
        "least half of what lies outside PyTorch beyond a normal context.",
        refuted="The backend is not in use; shape or token limit is unknown (then mem.non_torch).",
        do=("Lower the dispatch-token limit on ALL ranks; it scales in proportion.",),
        needs=(*RECORD, "launch line", "model shape"),
    ),
    Verdict(
        id="mem.unbudgeted_activation",
        means="An activation grows with context or batch and was not in the profiled budget.",
        decided="Logged sizes are linear in the tokens (R2 >= 0.95), alike on all ranks within 5 %, and "
        "the next size exceeds free + fragments.",
        refuted="One sample only; the ranks differ (then look at the routing).",
        do=("Smaller chunks, lower static fraction, a cap on the prompt length.",),
        needs=(*RECORD, "server logs of all ranks"),
    ),
    Verdict(
        id="mem.capture_headroom",
        means="The server dies while capturing graphs: the budget leaves too little beside KV cache and "
        "weights.",
        decided="The failure lies between the start of capture (or KV sizing) and ready, and free + "
        "fragments < requested.",
        refuted="The failure comes after ready; the fragments cover the request.",
        do=("Lower the utilisation setting by 0.01 per started percent.", "Fewer or smaller capture sizes."),
        needs=(*RECORD, "the server log around it"),
    ),
    Verdict(
        id="mem.graph_pool_large",
        means="Graph capture takes an unusually large part of what was left.",
        decided="Cost / available before capture >= 25 %, or twice what another engine needs for the same "
        "model.",
        refuted="Only small private pools are known.",
        do=("Fewer capture sizes; compare the growth per size.",),
        needs=("the lines at begin and end of capture",),
    ),
    Verdict(
        id="mem.alloc_retry_recovered",
        means="Device allocations failed, cached blocks were released and the retry worked: costly, not "
        "fatal.",
        decided="Failed-allocation warnings or a retry counter, and no out-of-memory error on that device "
        "after.",
        refuted="An error follows for the same device.",
        do=("Leave headroom; correlate with stalls; only then quieten the log.",),
        needs=("server log or memory_stats",),
        remedies=("leave-headroom",),
    ),
    Verdict(
        id="mem.host_oom",
        means="The host ran out of RAM and the kernel killed the process; the GPU is not the cause.",
        decided="A kernel line that names the killed process, an oom-kill line, or exit 137 with reason "
        "OOMKilled.",
        refuted="A word such as oom_score alone; a zero counter; exit 137 with another reason.",
        do=("Smaller pinned and offload buffers, fewer loader workers, a larger container limit.",),
        needs=("kernel log, journal or container status",),
        remedies=("smaller-host-buffers",),
    ),
    Verdict(
        id="mem.oom_unexplained",
        means="An out-of-memory error without numbers: the cause cannot be told.",
        decided="The bare CUDA or HIP message at an error line, and no record with numbers near it.",
        refuted="Any record of the same failure.",
        do=("Get the whole message, nvidia-smi at that time, a snapshot.",),
        needs=("log",),
    ),
    Verdict(
        id="advice.expandable_segments_unsafe",
        means="Expandable segments clash with a feature in use.",
        decided="expandable_segments:True together with custom all-reduce (tensor parallel size > 1 and "
        "not disabled) or sleep mode; a failure in that component right after capture confirms it.",
        refuted="Tensor parallel size 1 or custom all-reduce disabled, and no sleep mode.",
        do=("Remove the setting, or start with --disable-custom-all-reduce, or without sleep mode.",),
        needs=("launch line or environment", "server log"),
    ),
)
