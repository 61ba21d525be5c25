"""All rules that look at devices: the samples are put in order once and shown to each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.analyse.gpu import devices
from moexray.diagnose.gpu.smi import driver_share, gpu_lost, mig_limit, throttled, unified_memory
from moexray.diagnose.memory.pairs import beside_nvidia_smi, oversubscribed
from moexray.diagnose.memory.series import growth_unattributed, stall_from_samples

if TYPE_CHECKING:
    from moexray.core.finding import Finding
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["device_rules"]

RULES = (
    unified_memory,
    mig_limit,
    throttled,
    gpu_lost,
    driver_share,
    growth_unattributed,
    stall_from_samples,
    beside_nvidia_smi,
    oversubscribed,
)


def device_rules(run: Run, limits: Limits) -> list[Finding]:
    """smi.* and mem.*, decided from samples of devices, allocator statistics or both."""
    found = devices(run)
    return [finding for rule in RULES for finding in rule(run, limits, found)]
