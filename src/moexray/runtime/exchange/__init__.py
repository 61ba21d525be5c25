"""All-to-all with fallback between the ranks of one host; see ladder.py, and attach.py for torch."""

from __future__ import annotations

from moexray.runtime.exchange.attach import attach
from moexray.runtime.exchange.ladder import Exchange
from moexray.runtime.exchange.options import RUNGS, Counters, Fallback, Options

__all__ = ["RUNGS", "Counters", "Exchange", "Fallback", "Options", "attach"]
