"""Remedies of the memory subject: data only."""

from __future__ import annotations

from moexray.core.finding import Remedy

__all__ = ["REMEDIES"]

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "lower-utilization",
        "Lower {setting} by {by}: that leaves {bytes} more outside the engine's budget.",
        "Set the old value again.",
        "Fewer KV-cache blocks: watch preemptions and queue length afterwards.",
    ),
    Remedy(
        "cap-batched-tokens",
        "Cap the tokens of one step (--max-num-batched-tokens, SGLang --chunked-prefill-size): half the "
        "tokens halve the largest activation.",
        "Set the old value again.",
        "Long prompts take more steps, so time to first token rises.",
    ),
    Remedy(
        "expandable-segments",
        "Start the server with {env}=expandable_segments:True (torch >= 2.1): a segment grows in pages, and "
        "free pages go back one by one.",
        "Remove expandable_segments from {env} and restart.",
        "Only without custom all-reduce (TP > 1 and not disabled), sleep mode or other users of legacy "
        "CUDA IPC: {checked}. Replay the allocation history before relying on it. Before torch 2.9 the "
        "variable is PYTORCH_CUDA_ALLOC_CONF.",
    ),
    Remedy(
        "max-split-size",
        "Start the server with {env}=max_split_size_mb:{mb} (torch >= 1.8): blocks above that size are never "
        "split for smaller tensors.",
        "Remove max_split_size_mb from {env} and restart.",
        "Blocks above the limit are only reused for requests of nearly their size, and too small a limit "
        "makes large requests fail while weights load; replay the allocation history first.",
    ),
    Remedy(
        "gc-threshold",
        "Start the server with {env}=garbage_collection_threshold:0.8 and a memory fraction below 1 "
        "(set_per_process_memory_fraction), without which it does not act: unused whole segments are given "
        "back before the device is full.",
        "Remove garbage_collection_threshold from {env}, and the fraction, and restart.",
        "It cannot free a segment that a live block pins; giving back costs device calls.",
    ),
    Remedy(
        "replay-history",
        "Record the allocation history (torch.cuda.memory._record_memory_history, then _dump_snapshot) and "
        "try the settings on it with `moexray whatif memory SNAPSHOT` before changing them.",
        "Switch the recording off.",
        "The recording costs about 2 microseconds per allocation; dump it at idle.",
    ),
    Remedy(
        "release-cache",
        "Call torch.xpu.empty_cache() between requests of very different size.",
        "Remove the call.",
        "Costs device calls each time; never inside the step loop.",
    ),
    Remedy(
        "chunk-prefill",
        "Make the peak smaller: chunked prefill with fewer tokens per step (--max-num-batched-tokens, "
        "--chunked-prefill-size), cap prompt log-probabilities and echo, shorten --max-model-len.",
        "Set the old values again.",
        "Expandable segments cannot help here: even perfect compaction leaves too little.",
    ),
    Remedy(
        "more-shards",
        "Spread the model over more GPUs (larger tensor or expert parallel size) or load quantised weights.",
        "Go back to the old layout.",
        "Quantised weights change outputs a little: compare scores before and after.",
    ),
    Remedy(
        "look-for-limits",
        "Look for a limit below the card's size: torch.cuda.set_per_process_memory_fraction, "
        "per_process_memory_fraction in the allocator settings, the MIG profile, a container or cgroup "
        "device quota, the commit limit (paging file) of the operating system.",
        "Nothing was changed.",
        "The message alone cannot tell which of them it is.",
    ),
    Remedy(
        "raise-fraction",
        "Raise the per-process memory fraction of this process (allowed now: {allowed}).",
        "Set the old fraction again.",
        "Whoever set it may have kept the rest for another process.",
    ),
    Remedy(
        "free-other-process",
        "Free the {bytes} that are held outside this process{pids}: nvidia-smi "
        "--query-compute-apps=pid,used_memory --format=csv (AMD: amd-smi process) lists the holders.",
        "Start the other process again.",
        "A dead worker may still hold its memory until its process is gone.",
    ),
    Remedy(
        "budget-beside-others",
        "If the other process must stay, lower {setting} by {by}.",
        "Set the old value again.",
        "Both processes then need a fixed share each.",
    ),
    Remedy(
        "stay-below-total",
        "Keep the peak below the card's memory: smaller batch or shorter context; on Windows switch the "
        "driver's system-memory fallback off, so that it fails instead of slowing down.",
        "Set the old batch again.",
        "Watch peak / total rather than waiting for an error.",
    ),
    Remedy(
        "sample-non-torch",
        "Take two pairs of torch.cuda.memory_stats() and nvidia-smi under load, minutes apart: they show "
        "whether the part outside PyTorch grows.",
        "Nothing was changed.",
        "",
    ),
    Remedy(
        "fewer-channels",
        "Use fewer communicators and channels (NCCL_MAX_NCHANNELS, smaller NCCL_BUFFSIZE).",
        "Unset them.",
        "Less bandwidth for large messages: measure the collectives afterwards.",
    ),
    Remedy(
        "lower-dispatch-tokens",
        "Lower SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK (vLLM: VLLM_MOE_DP_CHUNK_SIZE) on ALL ranks; "
        "the buffers shrink in proportion. Count them in the static memory fraction.",
        "Set the old value again on all ranks.",
        "A batch with more tokens per rank than the limit fails.",
    ),
    Remedy(
        "fewer-captures",
        "Capture fewer or smaller batch sizes (vLLM cudagraph_capture_sizes, SGLang --cuda-graph-max-bs) "
        "or lower --max-num-seqs.",
        "Set the old sizes again.",
        "Batches without a graph run eagerly and slower.",
    ),
    Remedy(
        "compare-captures",
        "Compare the memory before and after each captured size in the log, then leave out the sizes that "
        "cost most.",
        "Nothing was changed.",
        "The owner of the memory needs a snapshot taken after the capture, with private-pool ids.",
    ),
    Remedy(
        "leave-headroom",
        "Leave more memory unreserved (lower {setting} by 0.01 to 0.02): each retry gives cached blocks "
        "back and waits for the device. Where the host can move cold blocks out, "
        "moexray.runtime.rescheduler decides when: above 92 % in 3 samples, with work pending.",
        "Set the old value again; stop calling look(), or MOEXRAY_OFF=rescheduler.",
        "Correlate the retries with slow steps first.",
        call="moexray.runtime.rescheduler.Rescheduler(capacity_bytes, move), and look(now_s, used, "
        "pending=..., blocks=...) where the host samples its memory",
        needs="The host has blocks that it can move (KV of idle sequences, cold experts) and a function that "
        "moves one; it keeps the clock and the thread.",
        verify="figures(): armings stay few, short and refused at 0; num_alloc_retries of "
        "torch.cuda.memory_stats() no longer rises. Static against dynamic: benchmarks/rescheduler.py.",
    ),
    Remedy(
        "quieten-log",
        "Once the retries are gone or known to be harmless, raise TORCH_CPP_LOG_LEVEL to ERROR to quieten "
        "the log.",
        "Unset TORCH_CPP_LOG_LEVEL.",
        "Hides other warnings of the C++ side as well.",
    ),
    Remedy(
        "smaller-host-buffers",
        "Make host buffers smaller: pinned and offload buffers (--swap-space, --cpu-offload-gb, CPU KV "
        "cache), fewer loader workers, fewer ranks per container. A buffer that one process hands to "
        "another can change hands by its pages (moexray.runtime.zero_copy); a copy holds it twice.",
        "Set the old sizes again; copy again, or MOEXRAY_OFF=zero-copy: send() of the port then refuses "
        "and the "
        "parcel stays with its owner.",
        "Which buffer it was needs the memory of the process over time.",
        call="moexray.runtime.zero_copy.Port.pair(), Parcel.make(size), send(parcel) and receive()",
        needs="Two processes of one user on one Linux host; the sender is done with the buffer when it hands "
        "it over.",
        verify="The sum of Pss in /proc/PID/smaps_rollup of both processes: the content once. Time and "
        "memory "
        "against a copy: benchmarks/zero_copy.py.",
    ),
    Remedy(
        "larger-container",
        "Give the container or cgroup a higher memory limit, if the host has it.",
        "Set the old limit again.",
        "A leak only takes longer then.",
    ),
    Remedy(
        "drop-expandable-segments",
        "Remove expandable_segments from {env} and restart.",
        "Set it again.",
        "Fragmentation may come back: leave headroom or use max_split_size_mb.",
    ),
    Remedy(
        "disable-custom-all-reduce",
        "Or keep the allocator setting and start with --disable-custom-all-reduce: NCCL takes over, a "
        "little slower.",
        "Remove --disable-custom-all-reduce.",
        "Measure decode latency: small all-reduces get slower.",
    ),
    Remedy(
        "no-sleep-mode",
        "Or keep the allocator setting and start without sleep mode.",
        "Switch sleep mode on again.",
        "Memory is then not released while the server is idle.",
    ),
)
