"""Words of the line parsers: lower-case literals, one of which each line that a parser uses holds.

A text without any of its words never loads a parser; of a log of many megabytes, only lines with a word
of some parser are kept. They stand apart from the parsers so that these can stay unloaded.
"""

from __future__ import annotations

__all__ = [
    "ACCESSES",
    "BENCH",
    "COMM",
    "COMM_A2A",
    "COMM_NCCL",
    "COMM_RAS",
    "ENGINE",
    "LAUNCH",
    "MEMORY_EVENTS",
    "NCU",
    "NUMERICS",
    "OOM",
    "ROUTING",
    "SMI",
    "SMI_HOST",
    "SMI_MONITOR",
    "SMI_QUERY",
]

OOM = (
    "memory", "oom", "memalloc", "alloc", "pytorch", "capacity",
)  # fmt: skip

MEMORY_EVENTS = (
    "memory", "weight", "kv cache", "cuda graph", "buffer", "logits", "workspace", "oom", "kill", "xid",
    "loading took", "signal", "died", "kv_cache", "kv size", "non-torch", "non_torch", "non torch", "captur",
    "token", "context", "ctx", "seq", "exit", "custom", "cudaipc", "crash", "terminat", "failed",
)  # fmt: skip

LAUNCH = (
    "vllm", "sglang", "trtllm", "tensorrt_llm", "torchrun", "torch.distributed", "_conf", "args", "config:",
    "nccl_", "export ", "--", "docker run", "\\", "value:", "hidden_", "experts", "deepspeed",
    "accelerate launch", "podman run", "parallel_size", "parallel-size", "tp_size", "tp-size", "sleep_mode",
    "sleep-mode", "llm engine", "torch_", "cuda_", "hip_", "rocr_", "hsa_", "sgl_", "deepep_", "nvshmem_",
    "tllm_", "ucx_", "gloo_", "rccl_", "ray_", "omp_", "dg_", "deep_", "flashinfer_", "triton_",
    "torchinductor_", "mc_", "mooncake_", "world_size", "master_", "local_", "python",
)  # fmt: skip

ENGINE = (
    "jit", "compil", "warmup", "warm-up", "dynamo", "autotun", "eplb", "balancedness", "rearrang",
    "rebalanc", "hotness", "async transfer", "backend", "kernels for", "disabl", "preempt", "retract",
    "garbage collection", "gc ", "snapshot", "startup complete", "ready", "uvicorn running",
    "is now listening", "grpcinference", "llm engine", "server_args", "server version", "restart",
    "torch distributed begin", "weight", "loading took", "world size", "throughput:", "prefill batch",
    "decode batch", "mixed batch", "starting to load", "specdecoding metrics", "kv transfer metrics",
    "required tokens",
)  # fmt: skip

COMM = (
    "guid", " ranks", "gpus", "world", "nproc", "watchdog", "worknccl", "dump signal",
    "remote process exited", "monitoredbarrier", "initialization options", "group", "pg ", "nodes", "work:",
    "peer", "error", "exception", "segmentation fault", "traceback",
)  # fmt: skip

COMM_RAS = (
    "have launched", "has launched", "not launched any", "mismatch", "incomplete", "managed by process",
    "operation counts", "missing rank", "job summary", "process information not found", "ranks  ",
    "communicators...",
)  # fmt: skip

COMM_NCCL = (
    "nccl info", "nccl warn",
)  # fmt: skip

COMM_A2A = (
    "deepep", "prefill batch", "new-token", "x.size(0)", "node-rank", "node_rank", "timeout",
    "tokens_per_rank", "_tokens", "batch of ",
)  # fmt: skip

BENCH = (
    "(tok/s)", "(req/s)", "(ms)", "successful requests", "benchmark", "result", "(s)",
)  # fmt: skip

ACCESSES = ("stride", "width =", "width=", "width:", "base =", "base=", "base:", "smem", "shared mem")

NCU = ("context ", "gpu__time_duration", "duration ", "mem_shared", "wavefronts_shared")

NUMERICS = (
    "bitwise", "accuracy", "acc:", "exact match", "exact_match", "questions", "00:00]", "invarian", "bs=",
    "bs =", "batch size ", "batch_size ",
)  # fmt: skip

SMI = (
    "nvidia-smi", "nvml", "device handle", "mib /", "mib|", "gpu is lost", "no devices were found", "+---",
    "|===", "not supported", "err!", "mib |", "gib |", "reset",
)  # fmt: skip

SMI_QUERY = (
    "nvsmi log", "memory usage", "gpu 0", "total ", "reserved ", "used ", "free ", "driver version",
    "gpu ", "memory ", "slowdown", "power cap", "power draw", "sm  ", "temp", "process id", "mig",
    "instance id", "name ",
)  # fmt: skip

SMI_MONITOR = (
    "# gpu", "#time", "#date", "gpu0", "gpu1", "# idx", "   -", "#gpu", "# time", "# date",
)  # fmt: skip

SMI_HOST = (
    "memtotal", "memavailable", "memfree", "=========", "memory.used", "memory.total", "utilization.gpu",
    " mib, ", "pytorch cuda memory summary", "cuda ooms", "gpu reserved memory", "allocated memory",
    "num_alloc_retries", "num_ooms", "memory [", "used_", "power.", "clocks", "temperature.", "pci.",
    "process_name",
)  # fmt: skip

ROUTING = (
    "per token", "/token", "per_token", "/ token",
)  # fmt: skip
