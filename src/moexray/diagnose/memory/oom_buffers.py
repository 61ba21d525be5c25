"""How large the all-to-all buffers must be, from the settings and the model's shape."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.diagnose.advice import launches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moexray.core.limits.memory import MemoryLimits
    from moexray.core.run import Run

__all__ = ["Buffers", "explained", "predict"]

LIMITS = (
    "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
    "VLLM_MOE_DP_CHUNK_SIZE",
    "VLLM_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
    "DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
    "num_max_dispatch_tokens_per_rank",
)
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
REDUNDANT = ("num_redundant_experts", "ep_num_redundant_experts")
BACKENDS = ("moe_a2a_backend", "all2all_backend", "VLLM_ALL2ALL_BACKEND")
COPIES = 2  # DeepEP's low-latency buffers are doubled, so that one batch is sent while one is received
ELEMENT_BYTES = 2  # BF16 in both directions: dispatch in FP8 needs less, the buffer is sized for BF16


@dataclass(frozen=True, slots=True)
class Buffers:
    """A predicted size and what it was made of (bytes and counts)."""

    size: int
    experts: int
    tokens: int
    token_bytes: int
    copies: int = COPIES


def predict(run: Run, source: str) -> Buffers | None:
    """Buffers of the server whose memory stands in `source`; None if backend, limit or shape is unknown.

    Source: DeepEP's low-latency size hint, reduced to its leading term.
    """
    folder = posixpath.dirname(source)
    found = launches(run)
    near = [x for x in found if x.folder == folder] or found
    settings: dict[str, str] = {}
    for launch in [*near, *found]:
        for key, value in launch.settings.items():
            settings.setdefault(key, value)
    for row in run.rows("launch"):
        if row["origin"] == "config":
            settings.setdefault(row["key"], row["value"])
    backend = " ".join(settings.get(b, "") for b in BACKENDS).lower()
    low_latency = "deepep" in backend and settings.get("deepep_mode", "low_latency") != "normal"
    if not low_latency or "high_throughput" in backend:
        return None
    tokens, hidden = _first(settings, LIMITS), _first(settings, ("hidden_size", "hidden_dim"))
    experts = _first(settings, EXPERTS)
    if tokens is None or hidden is None or experts is None:
        return None
    experts += _first(settings, REDUNDANT) or 0
    token_bytes = 2 * hidden * ELEMENT_BYTES
    return Buffers(experts * tokens * token_bytes * COPIES, experts, tokens, token_bytes)


def explained(buffers: Buffers, non_torch: int, context: int, limits: MemoryLimits) -> bool:
    """Whether the prediction is at least half of what lies outside PyTorch beyond a normal context."""
    rest = non_torch - context
    return limits.buffer_share_ratio * rest <= buffers.size <= limits.buffer_most_ratio * non_torch


def _first(settings: Mapping[str, str], keys: tuple[str, ...]) -> int | None:
    return next((int(settings[k]) for k in keys if settings.get(k, "").isdigit()), None)
