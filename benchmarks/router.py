"""What a router policy costs: `make bench`, on a quiet machine. Needs transformers (moexray[lab]).

A small random model (4 layers, 64 experts, top-8, hidden 256) runs in blocks of a few forwards: unwrapped,
under a policy, under it again, unwrapped; so each policy has the unwrapped model on both sides, all policies
take turns, and their order turns from round to round. CPU time of the one thread. The figure is the median
over rounds of the difference within a block, per layer, and the middle half of the rounds; "%" is of the
unwrapped forward, which in a real model is far longer. The first line, unwrapped again, shows the noise.

    python benchmarks/router.py [-n ROUNDS]
"""

import argparse
import importlib.util
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import Any

IMPORT = """
import importlib, pkgutil, time, numpy, torch
start = time.process_time()
import moexray.runtime
for found in pkgutil.walk_packages(moexray.runtime.__path__, "moexray.runtime."):
    if not found.name.endswith(".sitecustomize"):  # not a module of ours to import: it runs at a start
        importlib.import_module(found.name)
print(time.process_time() - start)
"""
BUDGET_S = 0.05  # of importing all modules of moexray.runtime, beyond torch
AGAIN = "(unwrapped)"
ARMS = (AGAIN, "plain", "salted", "salted:ties_only=true", "temperature", "soft-mask", "bias",
        "capacity:mode=drop", "capacity:mode=spill", "capacity:mode=reroute", "sticky",
        "(counter)")  # fmt: skip
# rows, length, forwards in a turn
SHAPES = {"decode 1": (1, 1, 8), "decode 16": (16, 1, 6), "prefill 512": (1, 512, 1)}
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


def timed(net: Any, ids: Any, forwards: int, arm: str) -> tuple[float, float]:
    """CPU seconds of a forward: (unwrapped, under the arm), each before and after the other."""

    def some() -> float:
        start = time.thread_time()
        for _ in range(forwards):
            net(ids)
        return (time.thread_time() - start) / forwards

    net(ids)
    bare = some()
    handle = wrapped(net, arm)
    net(ids)
    under = some() + some()
    if handle is not None:
        if arm[0] != "(" and handle.guard.figures().fallbacks:
            sys.exit(f"{arm}: {handle.guard.figures().error}")
        handle.detach()
    return (bare + some()) / 2, under / 2


def import_s() -> float:
    """Median CPU seconds of importing all modules of the runtime in a process that has torch."""
    command = [sys.executable, "-c", IMPORT]
    done = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(7)]
    return statistics.median(float(d.stdout) for d in done)


def main() -> int:
    """Prints both tables."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("-n", "--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    if missing := [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]:
        print(f"benchmarks/router.py: skipped, {' and '.join(missing)} not installed here")
        return 0
    took = import_s()
    verdict = "ok" if took <= BUDGET_S else "OVER"
    print(f"import all of moexray.runtime: {took * 1e3:.0f} ms; {BUDGET_S * 1e3:.0f} ms: {verdict}")

    import torch

    net = model()
    print(f"us per layer over the unwrapped model, CPU time: median and middle half of {rounds} rounds")
    with torch.inference_mode():
        for name, (count, length, forwards) in SHAPES.items():
            ids = torch.randint(1024, (count, length))
            pairs: dict[str, list[tuple[float, float]]] = {arm: [] for arm in ARMS}
            for turn in range(rounds):
                for arm in ARMS[turn % len(ARMS) :] + ARMS[: turn % len(ARMS)]:
                    pairs[arm].append(timed(net, ids, forwards, arm))
            base = statistics.median(bare for rows in pairs.values() for bare, _ in rows)
            print(f"{name}: {base * 1e3:.2f} ms unwrapped")
            for arm, blocks in pairs.items():
                low, more, high = (
                    q / LAYERS * 1e6 for q in statistics.quantiles((b - a for a, b in blocks), n=4)
                )
                share = more * LAYERS / 1e6 / base
                print(f"  {arm:<24}{more:>+8.0f} [{low:+.0f}, {high:+.0f}]  {share:+.1%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
