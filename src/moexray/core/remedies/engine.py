"""Remedies of the engine subject: data only."""

from __future__ import annotations

from moexray.core.finding import Remedy

__all__ = ["REMEDIES"]

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "eplb-async",
        "Move experts asynchronously: --eplb-config '{{\"use_async\": true}}' (vLLM); SGLang: "
        "--eplb-rebalance-layers-per-chunk 1.",
        'Set "use_async" back to false, or drop the chunk option.',
        "Needs a release that has it; a countdown in the log that is negative and keeps falling is stuck.",
    ),
    Remedy(
        "eplb-interval",
        "Rearrange less often: a longer step_interval (vLLM) or "
        "--eplb-rebalance-num-iterations (SGLang){by}.",
        "Restore the interval.",
        "The placement follows a change of the mix later.",
    ),
    Remedy(
        "eplb-fewer-moves",
        "Move fewer experts at a time: a policy that only swaps where it pays, "
        "or --eplb-min-rebalancing-utilization-threshold (SGLang) below 1.",
        "Restore the policy.",
    ),
    Remedy(
        "eplb-off",
        "Switch balancing off for this load: drop --enable-eplb.",
        "Set --enable-eplb again.",
        "Recheck when the mix of requests changes.",
    ),
    Remedy(
        "eplb-restart",
        "Restart the engine, or run it with synchronous balancing (use_async false); alert on a countdown "
        "that stays below 0.",
        "Set use_async to true again.",
        "Synchronous moves stop decoding while they last.",
    ),
    Remedy(
        "look-elsewhere",
        "Leave the placement as it is and look at kernels, all-to-all and scheduling: a trace of two ranks.",
        "Nothing to undo.",
    ),
    Remedy(
        "jit-warm-up",
        "Warm up the shapes that were compiled while serving before traffic arrives (extend the warm-up "
        "sizes, or send requests of these lengths first).",
        "Drop the warm-up requests.",
        "Start-up takes longer.",
    ),
    Remedy(
        "jit-cache",
        "Keep the compile caches between starts on local disk: TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR, "
        "DG_JIT_CACHE_DIR (SGLang: SGLANG_DG_CACHE_DIR), FLASHINFER_WORKSPACE_BASE, VLLM_CACHE_ROOT.",
        "Unset the variables.",
        "Caches belong to one build of driver, compiler and engine.",
    ),
    Remedy(
        "jit-leave-out",
        "Leave the first runs, until two in a row agree, out of any comparison.",
        "Nothing to undo.",
    ),
    Remedy(
        "jit-precompile",
        "Compile before the first collective: python -m sglang.compile_deep_gemm with the same arguments "
        "on every node, or share one cache between the nodes.",
        "Remove the step.",
        "Repeat it after each upgrade.",
    ),
    Remedy(
        "jit-barrier",
        "Put a barrier after warm-up, so that no rank enters the first all-to-all while another compiles.",
        "Remove the barrier.",
        "A longer time limit only hides the difference.",
    ),
    Remedy(
        "backend-pin",
        "Pin the backend of the faster run for the affected range ({backend}), or switch by batch size.",
        "Remove the setting.",
        "Check outputs and the other load levels again.",
    ),
    Remedy(
        "snapshot-light",
        "Write snapshots without the history: torch.cuda.memory._snapshot(include_traces=False) where the "
        "build has it, or record a shorter one: _record_memory_history(max_entries=1000).",
        "Restore max_entries.",
        "A short history does not reach back to the start.",
    ),
    Remedy(
        "snapshot-idle",
        "Dump at idle or after the incident, not on a timer while serving.",
        "Restore the timer.",
    ),
    Remedy(
        "window-repeat",
        "Repeat the window, or mark it and leave it out of the comparison.",
        "Nothing to undo.",
        "Windows of all arms must be treated alike.",
    ),
)
