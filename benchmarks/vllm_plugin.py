"""CPU time per token of vLLM with our plug-in recording, over that without: run it in .venv-vllm.

    .venv-vllm/bin/python benchmarks/vllm_plugin.py [--pairs 12] [--tokens 64] [--json]

One engine in one process, the lab's model, 16 prompts of 64 tokens, 64 tokens out, one thread. An arm is one
`generate` (on a machine busy with other work: more and shorter ones); detached and attached arms alternate as
ABBA, so slow drifts cancel in a pair. Process CPU time, median of the pairs' ratios; an A/A column (second A
over first A of the same pair) shows the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 1.03  # ratio, median; the bar of the issue that this answers
MODEL = Path(__file__).parents[1] / "src/moexray/verify/lab/models/skewed"
PROMPTS, LENGTH, TOKENS = 16, 64, 64
WARM = 8  # tokens after each switch that are not measured: a new ring of 16 MiB goes through the caches


def main() -> None:
    """Prints the figures; exit 1 past the limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from moexray.live.drain import RingReader
    from moexray.runtime.recorder import ring_folder

    rings = tempfile.TemporaryDirectory(prefix="moexray-bench-", dir=ring_folder().parent)
    os.environ |= {
        "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "MOEXRAY_ATTACH": "1",
        "MOEXRAY_RINGS": rings.name,
    }  # fmt: skip
    from vllm import LLM, SamplingParams

    from moexray.runtime.engines import vllm as plugin

    llm = LLM(
        model=str(MODEL), max_model_len=1024, max_num_seqs=PROMPTS, enforce_eager=True, dtype="bfloat16"
    )  # fmt: skip
    [recording] = plugin._recordings  # noqa: SLF001 - the switch that only this benchmark needs
    few = {"max_tokens": options.tokens, "min_tokens": options.tokens}
    sampling = SamplingParams(**few, ignore_eos=True, temperature=0.0)
    warm = SamplingParams(max_tokens=WARM, min_tokens=WARM, ignore_eos=True, temperature=0.0)
    rows = ([3 + (7 * row + 11 * at) % 1000 for at in range(LENGTH)] for row in range(PROMPTS))
    prompts = [{"prompt_token_ids": row} for row in rows]

    def arm(*, on: bool) -> float:
        if on:
            recording.attach()
        else:
            recording.detach()
            recording.ring.path.unlink(missing_ok=True)
        llm.generate(prompts, warm, use_tqdm=False)
        before = time.process_time()
        llm.generate(prompts, sampling, use_tqdm=False)
        return (time.process_time() - before) / (PROMPTS * options.tokens)

    for on in (True, False, True):
        arm(on=on)
    arms = [(arm(on=False), arm(on=True), arm(on=True), arm(on=False)) for _ in range(options.pairs)]
    recording.attach()
    llm.generate(prompts, sampling, use_tqdm=False)
    recording.flush()
    found = _figures(arms, RingReader(recording.ring.path).live())
    if options.json:
        print(json.dumps(found))
    else:
        print("  ".join(f"{name} {value:.4g}" for name, value in found.items()))
    rings.cleanup()
    sys.exit(found["ratio"] > LIMIT or found["failures"] > 0)


def _figures(arms: list[tuple[float, float, float, float]], live: dict[str, int]) -> dict[str, float]:
    """Of the times of ABBA pairs, s a token, and of what the ring says."""
    ratios = [(b1 + b2) / (a1 + a2) for a1, b1, b2, a2 in arms]
    noise = [a2 / a1 for a1, _, _, a2 in arms]
    spread = statistics.stdev(ratios) / len(ratios) ** 0.5
    return {
        "pairs": len(arms), "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
        "standard_error": spread,
        "ratio_of_sums": sum(b1 + b2 for _, b1, b2, _ in arms) / sum(a1 + a2 for a1, _, _, a2 in arms),
        "aa_ratio": statistics.median(noise), "us_per_token_off": 1e6 * statistics.median(a[0] for a in arms),
        "own_wall_share": live["own_ns"] / live["step_ns"],
        "records": live["head"], "failures": live["failures"], "load": os.getloadavg()[0],
    }  # fmt: skip


if __name__ == "__main__":
    main()
