"""Fragmentation stress: drives an allocator to a target ratio and records it in PyTorch's format."""

from __future__ import annotations

from moexray.verify.stress.arena import ArenaHeap
from moexray.verify.stress.generate import Outcome, Spec, drive, record
from moexray.verify.stress.heaps import Heap, PolicyHeap
from moexray.verify.stress.mixes import MIXES
from moexray.verify.stress.tape import TorchHeap

__all__ = ["MIXES", "ArenaHeap", "Heap", "Outcome", "PolicyHeap", "Spec", "TorchHeap", "drive", "record"]
