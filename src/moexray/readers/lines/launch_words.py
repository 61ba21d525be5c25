"""Names of options: short and old forms folded into one, engines recognised by their commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.pattern import lazy

if TYPE_CHECKING:
    import re

__all__ = ["ENGINES", "canonical", "is_setting_name"]

ENGINES: tuple[tuple[re.Pattern[str], str], ...] = (
    (lazy(r"\bvllm(?:\.entrypoints[\w.]*)?\b(?: serve)?"), "vllm"),
    (lazy(r"\bsglang(?:\.launch_server|\.srt[\w.]*)?\b|\bsglang serve\b"), "sglang"),
    (lazy(r"\btrtllm-(?:serve|bench|llmapi-launch)\b|\btensorrt_llm\b"), "tensorrt_llm"),
    (
        lazy(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b|\bdeepspeed\b|\baccelerate launch\b"),
        "torch",
    ),
)

# As the engines' own --help gives them; the canonical name is the long one of vLLM where both have it.
ALIASES = {
    "tp": "tensor_parallel_size",
    "tp_size": "tensor_parallel_size",
    "dp": "data_parallel_size",
    "dp_size": "data_parallel_size",
    "pp": "pipeline_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "ep": "expert_parallel_size",
    "ep_size": "expert_parallel_size",
    "dpl": "data_parallel_size_local",
    "moe_expert_parallel_size": "expert_parallel_size",
    "sc": "speculative_config",
    "O": "compilation_config",
    "cc": "compilation_config",
    "model_path": "model",
    "max_batch_size": "max_num_seqs",
    "max_running_requests": "max_num_seqs",
    "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction",
    "disable_cuda_graph": "enforce_eager",
    "enable_memory_saver": "enable_sleep_mode",
    "gpus_per_node": "nproc_per_node",
    "max_seq_len": "max_model_len",
    "context_length": "max_model_len",
}

SETTING = lazy(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
KNOWN_PREFIXES = (
    "PYTORCH_",
    "TORCH_",
    "NCCL_",
    "RCCL_",
    "CUDA_",
    "HIP_",
    "ROCR_",
    "VLLM_",
    "SGLANG_",
    "SGL_",
    "DEEPEP_",
    "NVSHMEM_",
    "TRTLLM_",
    "TLLM_",
    "UCX_",
    "GLOO_",
    "RAY_",
    "OMP_",
    "DG_",
    "DEEP_",
    "FLASHINFER_",
    "TRITON_",
    "TORCHINDUCTOR_",
    "MC_",
    "MOONCAKE_",
    "WORLD_SIZE",
    "MASTER_",
    "LOCAL_",
    "PYTHON",
    "HSA_",
    "MOEXRAY_",
)


def canonical(option: str) -> str:
    """The one name of an option: no dashes, lower case, aliases folded ("-tp" -> tensor_parallel_size)."""
    name = option.lstrip("-").replace("-", "_").replace(".", "_")
    if name in ALIASES:
        return ALIASES[name]
    name = name.lower()
    return ALIASES.get(name, name)


def is_setting_name(name: str) -> bool:
    """Whether a name is an environment variable of an engine, a runtime or a communication library."""
    return bool(SETTING.fullmatch(name)) and name.startswith(KNOWN_PREFIXES)
