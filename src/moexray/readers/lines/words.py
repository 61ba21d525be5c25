"""Words of the line parsers: lower-case literals, one of which each line that a parser uses holds.

A text without any of its words never loads a parser; of a log of many megabytes, only lines with a word
of some parser are kept. They stand apart from the parsers so that these can stay unloaded.
"""

from __future__ import annotations

__all__ = [
    "BENCH",
    "COMM",
    "COMM_A2A",
    "COMM_NCCL",
    "COMM_RAS",
    "ENGINE",
    "LAUNCH",
    "MEMORY_EVENTS",
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
    "memory", "weight", "kv cache", "cuda graph", "graph captur", "tokens", "buffer", "logits",
    "workspace", "oom", "kill", "xid", "exit code", "exitcode", "exit_code", "loading took",
    "custom_all_reduce", "custom allreduce", "signal", "died",
)  # fmt: skip

LAUNCH = (
    "vllm", "sglang", "trtllm", "tensorrt_llm", "torchrun", "torch.distributed", "_conf", "args",
    "config:", "nccl_", "export ", "--", "docker run", "\\", "value:",
    "hidden_", "experts", "deepspeed", "accelerate launch", "podman run", "parallel_size", "parallel-size",
    "tp_size", "tp-size", "sleep_mode", "sleep-mode",
)  # fmt: skip

ENGINE = (
    "jit", "compil", "warmup", "warm-up", "dynamo", "autotun", "eplb", "balancedness", "rearrang",
    "rebalanc", "hotness", "async transfer", "backend", "kernels for", "disabl", "preempt", "retract",
    "garbage collection", "gc ", "snapshot", "startup complete", "ready", "uvicorn running",
    "is now listening", "grpcinference", "llm engine", "server_args", "server version", "restart",
    "torch distributed begin", "weight", "loading took", "world size", "throughput:", "prefill batch",
    "decode batch", "mixed batch",
)  # fmt: skip

COMM = (
    "process group", "guid", " ranks", "gpus", "world", "nnodes", "nproc",
    "watchdog", "worknccl", "detected by watchdog", "dump signal", "nccl work:", "remote process exited",
    "monitoredbarrier", "ncclremoteerror", "by peer", "by remote peer", "world size", "world_size",
    "traceback (most", "initialization options", "pg guid", "nproc",
)  # fmt: skip

COMM_RAS = (
    "have launched", "has launched", "not launched any", "mismatch", "incomplete", "managed by process",
    "operation counts", "missing rank", "job summary", "process information not found", "ranks  ",
)  # fmt: skip

COMM_NCCL = (
    "nccl info", "nccl warn",
)  # fmt: skip

COMM_A2A = (
    "deepep", "receiver timeout", "dispatch_tokens_per_rank", "prefill batch", "new-token", "x.size(0)",
    "num_batched_tokens", "num_tokens", "node-rank", "node_rank",
)  # fmt: skip

BENCH = (
    "benchmark result", "(tok/s)", "(req/s)", "(ms)", "successful requests", "benchmark duration",
)  # fmt: skip

NUMERICS = (
    "bitwise", "batch invarian", "batch-invarian", "bs=1", "batch size 1",
)  # fmt: skip

SMI = (
    "nvidia-smi", "nvml", "device handle",
    "mib /", "mib|", "gpu is lost", "no devices were found", "+---", "|===",
    "not supported", "err!",
)  # fmt: skip

SMI_QUERY = (
    "nvsmi log", "memory usage", "gpu 0", "total ", "reserved ", "used ", "free ", "driver version",
    "gpu ", "memory ", "slowdown", "power cap", "power draw", "sm  ", "temp", "process id", "mig",
    "instance id", "name ",
)  # fmt: skip

SMI_MONITOR = (
    "# gpu", "#time", "#date", "gpu0", "gpu1", "# idx", "   -",
)  # fmt: skip

SMI_HOST = (
    "memtotal", "memavailable", "memfree", "=========", "memory.used", "memory.total", "utilization.gpu",
    " mib, ", "pytorch cuda memory summary", "cuda ooms", "gpu reserved memory", "allocated memory",
    "num_alloc_retries", "num_ooms",
)  # fmt: skip

ROUTING = (
    "per token", "/token", "bytes_per_token",
)  # fmt: skip
