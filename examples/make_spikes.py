"""Makes examples/spikes/: tokens stall whenever the expert balancer moves weights. Deterministic.

Run: python examples/make_spikes.py [FOLDER]
"""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

EPOCH = 1_793_000_000.0  # 2026-10-26
STEP_S, STALL_S, EVERY, STEPS = 0.018, 0.64, 500, 2400  # a rearrangement each 500 steps


def main(folder: Path) -> None:
    """Writes the latency of every step and the log of the balancer."""
    rows, lines, now = ["t_s,itl_ms"], [], 0.0
    for step in range(STEPS):
        value = STEP_S * (1 + 0.04 * ((step * 7) % 11 - 5) / 5)
        if step % EVERY == EVERY - 1:
            lines.append(_line(now, "Rearranging experts..."))
            value += STALL_S
            lines.append(_line(now + value, f"Rearranged experts in {STALL_S:.2f} seconds."))
        now += value
        rows.append(f"{EPOCH + now:.4f},{value * 1e3:.2f}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "itl.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "server.log").write_text("".join(lines), encoding="utf-8")


def _line(seconds: float, message: str) -> str:
    at = dt.datetime.fromtimestamp(EPOCH + seconds, dt.UTC)
    return f"INFO {at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} [eplb_state.py:1] {message}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "spikes")
