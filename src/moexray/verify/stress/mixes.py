"""What the stress generator asks for, step by step: sizes, lifetimes and call sites of some workloads.

A mix is sized for 4 GiB of live memory and scaled. The figures are ours, made from the shapes of the
tensors that the names tell (bf16); they are no measurement of an engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

__all__ = ["FOREVER", "MIXES", "SCALED_FOR", "Request"]

MIB = 1 << 20
FOREVER = 1 << 40  # steps
SCALED_FOR = 4 << 30  # bytes alive, about
LAYERS, ACTIVE, HIDDEN, INNER, BYTES = 2, 4, 2048, 1408, 2  # of a step of the moe mix; bf16
TOKEN_PAD = 64  # rows of an expert's buffer are a multiple of it, as grouped kernels want
KV_TOKEN = 64 << 10  # bytes of keys and values of a token


@dataclass(frozen=True, slots=True)
class Request:
    """One allocation.

    Args:
        size: Bytes.
        life: Steps that it lives on after its own; 0 dies at the end of its step.
        site: Where in the program: function, file, line.
        note: What it belongs to, e.g. "layer 0 expert 3".
    """

    size: int
    life: int
    site: tuple[str, str, int]
    note: str = ""


_WEIGHTS = ("load_weights", "model/loader.py", 88)
_EXPERT_IN = ("expert_input", "model/moe.py", 141)
_EXPERT_HIDDEN = ("expert_hidden", "model/moe.py", 147)
_EXPERT_OUT = ("expert_output", "model/moe.py", 152)
_ROUTER = ("router_logits", "model/moe.py", 97)
_TABLE = ("block_table", "engine/kv.py", 30)
_KV = ("allocate_blocks", "engine/kv.py", 61)
_KV_GROW = ("grow_blocks", "engine/kv.py", 74)
_ACTIVATION = ("forward", "model/block.py", 52)
_GRADIENT = ("backward", "train/loop.py", 40)
_OPTIMIZER = ("optimizer_state", "train/loop.py", 12)
_ANY = ("allocate", "app/main.py", 5)


def _life(dice: random.Random, mean: float) -> int:
    """A geometric lifetime of at least one step."""
    return 1 + int(math.log(1 - dice.random()) / math.log(1 - 1 / mean))


def moe(dice: random.Random, step: int, scale: float) -> Iterator[Request]:
    """Serving a mixture of experts: weights, buffers per expert by padded token count, KV blocks."""
    if step == 0:
        for layer in range(8):
            for part, mib in (("experts.w13", 160), ("experts.w2", 80), ("attention", 24)):
                yield Request(int(mib * MIB * scale), FOREVER, _WEIGHTS, f"layer {layer} {part}")
    tokens = int(256 * 2 ** dice.uniform(0, 4) * scale)
    for layer in range(LAYERS):
        yield Request(max(tokens * 64 * 4, 512), 0, _ROUTER, f"layer {layer} router")
        left = tokens
        for expert in dice.sample(range(64), ACTIVE):
            share = int(left * dice.uniform(0.1, 0.6))
            left -= share
            rows = -(-max(share, 1) // TOKEN_PAD) * TOKEN_PAD
            note = f"layer {layer} expert {expert}"
            yield Request(rows * HIDDEN * BYTES, 0, _EXPERT_IN, note)
            yield Request(rows * INNER * 2 * BYTES, 0, _EXPERT_HIDDEN, note)
            yield Request(rows * HIDDEN * BYTES, 0, _EXPERT_OUT, note)
    yield from _sequences(dice, scale)


def _sequences(dice: random.Random, scale: float) -> Iterator[Request]:
    """Sequences that arrive with a prompt and grow; a step brings one or two."""
    for _ in range(dice.choice((1, 1, 2))):
        life = _life(dice, 24)
        prompt = int(dice.choice((64, 128, 192, 320, 512)) * KV_TOKEN * scale)
        yield Request(max(prompt, 512), life, _KV)
        yield Request(max(int(dice.choice((512, 2048, 8192)) * scale), 512), life, _TABLE)
        if dice.random() < 0.5:
            yield Request(max(int(16 * KV_TOKEN * scale), 512), max(life - 1, 1), _KV_GROW)


def kv(dice: random.Random, step: int, scale: float) -> Iterator[Request]:
    """Serving a dense model: weights, one activation buffer a step, many sequences."""
    if step == 0:
        for layer in range(16):
            yield Request(int(120 * MIB * scale), FOREVER, _WEIGHTS, f"layer {layer} weights")
    yield Request(int(dice.choice((8, 16, 24, 48)) * MIB * scale), 0, _ACTIVATION)
    for _ in range(3):
        yield from _sequences(dice, scale)


def training(dice: random.Random, step: int, scale: float) -> Iterator[Request]:
    """Training: optimizer state, activations of each layer, gradients; batches differ in length."""
    if step == 0:
        for layer in range(12):
            yield Request(int(48 * MIB * scale), FOREVER, _WEIGHTS, f"layer {layer} weights")
            yield Request(int(96 * MIB * scale), FOREVER, _OPTIMIZER, f"layer {layer} adam")
    length = dice.choice((128, 256, 384, 512))
    for layer in range(12):
        for mib in (1 / 16, 1 / 32, 1 / 128, 1 / 512):
            size = max(int(length * mib * MIB * scale), 512)
            yield Request(size, 0, _ACTIVATION, f"layer {layer}")
    for layer in reversed(range(12)):
        yield Request(int(8 * MIB * scale), 0, _GRADIENT, f"layer {layer}")
    if dice.random() < 0.3:
        yield Request(max(int(MIB * scale), 512), _life(dice, 40), _ANY)


def uniform(dice: random.Random, step: int, scale: float) -> Iterator[Request]:
    """No structure: sizes from 512 B to 64 MiB on a logarithmic scale, geometric lifetimes."""
    del step
    for _ in range(16):
        yield Request(max(int(2 ** dice.uniform(9, 26) * scale), 1), _life(dice, 30), _ANY)


MIXES: dict[str, Callable[[random.Random, int, float], Iterator[Request]]] = {
    "moe": moe,
    "kv": kv,
    "training": training,
    "uniform": uniform,
}
