"""Ground truth: incidents with planted causes, simulated, and written as the bundle an engineer would send.

It imports nothing of what reads or judges a bundle (import-linter holds that), so that a fault of theirs
cannot hide in it. `draw` makes a plan from a seed, `make` writes its bundle and its truth.
"""

from __future__ import annotations

from moexray.verify.incidents.bundle import make
from moexray.verify.incidents.plan import KINDS, WITHHELD, Cause, Plan, draw

__all__ = ["KINDS", "WITHHELD", "Cause", "Plan", "draw", "make"]
