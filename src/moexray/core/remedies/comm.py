"""Remedies of the comm subject: data only."""

from __future__ import annotations

from moexray.core.finding import Remedy

__all__ = ["REMEDIES"]

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "comm-find-branch",
        "Look for the branch that only some ranks take before this collective: an early return, a step "
        "without "
        "tokens, an exception that is caught, a condition on rank-local data. Every rank of the group must "
        "issue "
        "the same collectives in the same order.",
        "Nothing was changed.",
        "The rank whose timeout is printed first is mostly a victim.",
    ),
    Remedy(
        "comm-keep-recorder",
        "Set TORCH_FR_BUFFER_SIZE=20000 (before torch 2.8 or so: TORCH_NCCL_TRACE_BUFFER_SIZE) and "
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1 on all ranks, run again, collect the dumps of all ranks.",
        "Unset both.",
        "The recorder costs a few microseconds per collective.",
    ),
    Remedy(
        "comm-inspect-rank",
        "Inspect {ranks} first: its log, stack (py-spy dump --pid), process state, GPU errors (Xid in the "
        "kernel "
        "log) and link; collect its recorder dump.",
        "Nothing was changed.",
        "Restarting all ranks destroys this evidence.",
    ),
    Remedy(
        "comm-token-liveness",
        "Let the liveness probe watch token progress (a generation token counter that must rise while "
        "requests "
        "run), not /health.",
        "Put the old probe back.",
        "Use a window longer than the longest legal pause (model reload, expert rearrangement).",
    ),
    Remedy(
        "comm-stacks-of-laggards",
        "Take the stacks of {ranks} (py-spy dump) and ask for the status again after 10 s: only counts that "
        "do "
        "not move prove a hang.",
        "Nothing was changed.",
        "A difference of one operation at a single instant is normal.",
    ),
    Remedy(
        "comm-compare-shapes",
        "Compare the code path and the tensor shapes of {ranks} with those of the others at this call.",
        "Nothing was changed.",
    ),
    Remedy(
        "comm-mend-late-rank",
        "Find out what {ranks} did before it joined (compute, allocation, compile, host pause) and mend "
        "that.",
        "Nothing was changed.",
        "The limit itself is no remedy: it only decides when the wait becomes a crash.",
    ),
    Remedy(
        "comm-check-link",
        "Check the link of {ranks}: NCCL_DEBUG=INFO transport lines (SHM or NET/Socket inside a node is "
        "slow), NIC state and counters (ibstat, ethtool -S), NCCL_IB_HCA and NCCL_SOCKET_IFNAME, topology; "
        "run again with that pair or NIC excluded.",
        "Put the old NCCL_* values back.",
        "Excluding a NIC lowers the bandwidth of its neighbours.",
    ),
    Remedy(
        "comm-host-exchange",
        "Where all ranks of the group are on one host, and its collective is one of gloo or fails now and "
        "then: let all-to-all go over shared memory, alone or below that collective "
        "(moexray.runtime.exchange).",
        "detach() of the handle on all ranks puts torch's own function back; or MOEXRAY_OFF=exchange before "
        "the start.",
        "Not while a CUDA graph is captured; asynchronous calls and other groups go the original way "
        "(handle.passed). Tensors of a device are staged through the host: with NCCL it is a way to go on, "
        "not "
        "a faster one. A rank that dies ends the group, by name.",
        call='moexray.runtime.exchange.attach(group, Options(rungs=("shm", "ring"))) on all ranks; default '
        "rungs: the group's own collective first, then gloo, shm, ring",
        needs="All ranks of the group on one Linux host, in one network namespace, of one user; the handle's "
        "reason says if not.",
        verify="counters() of the handle: exchanges rise, fallbacks stay empty (each names rank and reason). "
        "Time beside gloo in the same run: benchmarks/exchange.py.",
    ),
    Remedy(
        "a2a-normal-mode-for-prefill",
        "Send prefill through the normal path: --deepep-mode auto (or normal) in SGLang, "
        "--all2all-backend deepep_high_throughput on prefill servers of vLLM; or cap the batch with "
        "--chunked-prefill-size / --max-num-batched-tokens at {limit}.",
        "Put the old mode back.",
        "The normal path cannot be captured in a CUDA graph; decode should stay on low latency.",
    ),
    Remedy(
        "a2a-raise-limit",
        "Or raise the limit on ALL ranks to the same value >= {needed} "
        "(SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK).",
        "Put the old value back on all ranks.",
        "The buffers grow linearly with it ({factor}): count them in the static memory share. Kernels bound "
        "the "
        "value, too (often 1024).",
    ),
    Remedy(
        "a2a-same-limit",
        "Set the same limit on ALL ranks; the buffers of all ranks are laid out by it.",
        "Put the old values back.",
        "Its memory cost is linear in the value.",
    ),
    Remedy(
        "a2a-distrust-results",
        "Do not use the results of these steps; pin the versions that last worked; record per-pair split "
        "sizes "
        "on all ranks (recorder schema 2.11 or newer, or log the split lists before the call).",
        "Nothing was changed.",
    ),
    Remedy(
        "a2a-inspect-source",
        "Look at {source} first: its log, its process, its link and NIC counters.",
        "Nothing was changed.",
        "The receivers that print the timeout are victims.",
    ),
    Remedy(
        "a2a-collect-transport",
        "Collect the transport log (NVSHMEM_DEBUG=INFO, NCCL_DEBUG=INFO), link counters of all nodes and "
        "the log "
        "of every rank.",
        "Unset the variables.",
        "Debug output is large.",
    ),
)
