"""All-to-all with fallback between the ranks of one host; see ladder.py."""

from __future__ import annotations

from moexray.runtime.exchange.ladder import RUNGS, SWITCH, Counters, Exchange, Fallback, Options

__all__ = ["RUNGS", "SWITCH", "Counters", "Exchange", "Fallback", "Options"]
