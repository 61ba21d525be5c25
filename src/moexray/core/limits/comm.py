"""Limits of the comm rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CommLimits"]


@dataclass(frozen=True, slots=True)
class CommLimits:
    """Each field: what it bounds, its unit, its source."""

    timeout_near_ratio: float = 0.5
    """Longest wait of a completed operation / its timeout from which we warn; catalogue of verdicts."""
    silent_source_ratio: float = 0.9
    """Share of receiver timeouts that name one source; catalogue of verdicts."""
    silent_source_receivers: int = 2
    """Receivers that must complain; one alone may itself be at fault. Catalogue of verdicts."""
    slow_pair_ratio: float = 2.0
    """Wait of a pair of ranks / median wait of all pairs; catalogue of verdicts (slow transfer)."""
    default_timeout_s: float = 600.0
    """Watchdog limit of NCCL groups where none is set, seconds; torch.distributed since 2.2."""
    default_dispatch_limit: int = 128
    """Tokens per rank on SGLang's low-latency path where the variable is not set; SGLang's default."""
    agreeing_pairs_ratio: float = 0.5
    """Pairs that two matrices must share to be about the same exchange; below it nothing is compared.
    Own choice: a fault of transport or of splits touches few pairs, another step nearly all."""
    node_bytes_per_s: float = 158e9
    """Beta inside a node, bytes per second and direction: DeepEP's published combine of 8 ranks over NVLink
    of H800 (dispatch 153 GB/s). Only what an exchange is compared with; no verdict rests on it."""
    net_bytes_per_s: float = 50e9
    """Beta between nodes per rank, bytes per second: one NIC of 400 Gbit/s; DeepEP publishes 43-58 GB/s."""
    exchange_alpha_s: float = 2e-6
    """Alpha per peer, seconds; own choice: a handshake over NVLink or RDMA takes 1-3 microseconds."""
