"""What a router policy costs: `make bench`, on a quiet machine. Needs transformers (moexray[lab]).

A small random model (4 layers, 64 experts, top-8, hidden 256) runs one forward at a time, unwrapped and
under each policy, all arms in turn within a round and the order turned from round to round; CPU time of
the one thread. The figure is the median over rounds of the difference to the unwrapped model of the same
round, per layer; "%" is of the unwrapped forward, which in a real model is far longer. A second line of
the unwrapped model shows the noise.

    python benchmarks/router.py [-n ROUNDS]
"""

import argparse
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import Any

IMPORT = """
import time, torch
start = time.process_time()
import moexray.runtime.counters, moexray.runtime.router, moexray.runtime.engines.transformers
print(time.process_time() - start)
"""
BUDGET_S = 0.05  # of `import moexray.runtime...` beyond torch
UNWRAPPED = "(unwrapped)"
ARMS = (UNWRAPPED, "(again)", "plain", "salted", "salted:ties_only=true", "temperature", "soft-mask", "bias",
        "capacity:mode=drop", "capacity:mode=spill", "capacity:mode=reroute", "sticky",
        "(counter)")  # fmt: skip
# rows, length, forwards in a turn
SHAPES = {"decode 1": (1, 1, 20), "decode 16": (16, 1, 12), "prefill 512": (1, 512, 2)}
LAYERS, EXPERTS, K = 4, 64, 8


def model() -> Any:
    """A random Qwen3-MoE."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=1024, hidden_size=256, intermediate_size=512, moe_intermediate_size=128,
        num_experts=EXPERTS, num_experts_per_tok=K, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, norm_topk_prob=True,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config).eval()


def wrapped(net: Any, arm: str) -> Any:
    """The handle of an arm; None for the bare model."""
    from moexray.runtime.counters import ExpertCounter
    from moexray.runtime.handle import Handle
    from moexray.runtime.router import attach

    if arm == "(counter)":
        counter = ExpertCounter(LAYERS, EXPERTS, pairs=512 * K)

        def count(layer: int, _module: Any, _args: Any, out: Any) -> None:
            counter.add(layer, out[2])

        def install(handle: Handle) -> None:
            handle.on_detach(net.register_forward_pre_hook(lambda *_: counter.begin()).remove)
            for layer, block in enumerate(net.model.layers):
                handle.on_detach(block.mlp.gate.register_forward_hook(partial(count, layer)).remove)

        return Handle("counter", install).attach()
    return None if arm.startswith("(") else attach(net, arm)


def timed(net: Any, ids: Any, forwards: int, arm: str) -> float:
    """CPU seconds of one forward."""
    handle = wrapped(net, arm)
    net(ids)
    start = time.thread_time()
    for _ in range(forwards):
        net(ids)
    seconds = (time.thread_time() - start) / forwards
    if handle is not None:
        if arm[0] != "(" and handle.guard.figures().fallbacks:
            sys.exit(f"{arm}: {handle.guard.figures().error}")
        handle.detach()
    return seconds


def import_s() -> float:
    """Median CPU seconds of importing the runtime in a process that has torch."""
    command = [sys.executable, "-c", IMPORT]
    done = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(7)]
    return statistics.median(float(d.stdout) for d in done)


def main() -> int:
    """Prints both tables."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("-n", "--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    took = import_s()
    verdict = "ok" if took <= BUDGET_S else "OVER"
    print(f"import moexray.runtime beyond torch: {took * 1e3:.1f} ms; {BUDGET_S * 1e3:.0f} ms: {verdict}")

    import torch

    net = model()
    print(f"us per layer over the unwrapped model, CPU time, median of {rounds} rounds")
    with torch.inference_mode():
        for name, (rows, length, forwards) in SHAPES.items():
            ids = torch.randint(1024, (rows, length))
            seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
            for turn in range(rounds):
                for arm in ARMS[turn % len(ARMS) :] + ARMS[: turn % len(ARMS)]:
                    seconds[arm].append(timed(net, ids, forwards, arm))
            base = statistics.median(seconds[UNWRAPPED])
            print(f"{name}: {base * 1e3:.2f} ms unwrapped")
            for arm in ARMS[1:]:
                more = statistics.median(a - b for a, b in zip(seconds[arm], seconds[UNWRAPPED], strict=True))
                print(f"  {arm:<24}{more / LAYERS * 1e6:>+8.0f}{more / base:>+9.1%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
