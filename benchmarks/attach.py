"""What recording costs a transformers model, method beside method: CPU time per MoE layer.

    OMP_NUM_THREADS=1 python benchmarks/attach.py [--rounds 60] [--json]

The lab's model (4 layers, 16 experts, top-2), eager, one thread. Each round runs every method once, in an
order that turns, between two runs of "off"; a figure is the median over rounds of the difference to their
mean, by process CPU time (+-: the standard error of the ring's). A run is 16 forwards (prefill: 4) after
some that are not measured, since a new ring of 16 MiB goes through the caches, and ends with `flush`: what is
recorded later counts. Then the write into the ring alone, for a step of 58 layers x 256 experts. Exit 1
past a bar: on a machine busy with other work CPU time is worth less. So look at "forward us" (2,800 for
decode 1 on the machine of the bar, when quiet) and at the share of it that the ring takes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from moexray.live.drain import RingReader
from moexray.runtime.attach import Recording, attach
from moexray.runtime.recorder import Ring, Site

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = Path(__file__).parents[1] / "src/moexray/verify/lab/models/skewed"
CASES = {"decode 1": (1, 1), "decode 16": (16, 1), "prefill 512": (1, 512)}  # rows, new tokens
RECORDING_US, WRITE_US = 50.0, 2.0  # bars: specs of the issue that this answers


@contextlib.contextmanager
def _hooks(model: Any, hook: Any) -> Iterator[None]:
    made = [m.register_forward_hook(hook) for m in model.modules() if type(m).__name__.endswith("Router")]
    yield
    for one in made:
        one.remove()


def off(_model: Any, _folder: Path) -> Any:
    """Nothing."""
    return contextlib.nullcontext()


def empty(model: Any, _folder: Path) -> Any:
    """A hook that returns."""
    return _hooks(model, lambda *_: None)


def counting(model: Any, _folder: Path) -> Any:
    """A hook that counts by scatter_add_ into a tensor."""
    counts, ones = torch.zeros(16, dtype=torch.int64), torch.ones(4096, dtype=torch.int64)

    def hook(_m: Any, _a: Any, out: Any) -> None:
        ids = out[2].flatten()
        counts.scatter_add_(0, ids, ones[: len(ids)])

    return _hooks(model, hook)


def lines(model: Any, _folder: Path) -> Any:
    """A log line a layer with its counts, formatted and written into memory."""
    log = logging.getLogger("bench")
    log.propagate = False
    log.setLevel(logging.INFO)
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.handlers[:] = [handler]

    def hook(_m: Any, _a: Any, out: Any) -> None:
        log.info("router load %s", out[2].flatten().bincount(minlength=16).tolist())

    return _hooks(model, hook)


def spans(model: Any, _folder: Path) -> Any:
    """A live OpenTelemetry span a layer with four attributes, batch processor, exporter that drops."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> Any:
            del spans
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=1 << 16))
    tracer = provider.get_tracer("bench")

    def hook(_m: Any, _a: Any, out: Any) -> None:
        counts = out[2].flatten().bincount(minlength=16)
        with tracer.start_as_current_span("moe.layer") as span:
            hot = int(counts.argmax())
            span.set_attributes({"layer": 0, "step": 1, "hot": hot, "max": int(counts[hot])})

    return _hooks(model, hook)


def ring(model: Any, folder: Path) -> Any:
    """moexray.attach."""
    return attach(model, folder=folder)


def kernels(model: Any, folder: Path) -> Any:
    """moexray.attach where kernels count, as on a device."""
    return attach(model, folder=folder, by_kernels=True)


METHODS = (off, empty, counting, lines, spans, ring, kernels)


def costs(model: Any, rows: int, new: int, rounds: int, folder: Path) -> dict[str, float]:
    """CPU microseconds per MoE layer beyond "off", which shows the noise; `forward` is the whole of it."""
    prompt = (torch.arange(rows * max(new, 32)).view(rows, -1) * 7 + 3) % 1000
    with torch.inference_mode():
        past = None
        if new == 1:
            past = DynamicCache(config=model.config)
            model(prompt, cache=past, use_cache=True)
        cost: dict[str, list[float]] = {m.__name__: [] for m in METHODS}
        alone = []
        forward = (16 if new == 1 else 4, prompt, new, past)
        for turn in range(rounds + 1):
            before = _spent(off, model, folder, forward)
            for at in range(len(METHODS)):
                method = METHODS[(at + turn) % len(METHODS)]
                took = _spent(method, model, folder, forward)
                after = _spent(off, model, folder, forward)
                if turn:
                    cost[method.__name__].append(took - (before + after) / 2)
                    alone.append(before)
                before = after
    layers = model.config.num_hidden_layers
    found = {"forward": statistics.median(alone)}
    found |= {name: statistics.median(values) / layers for name, values in cost.items()}
    spread = statistics.stdev(cost[ring.__name__]) / layers
    return found | {"standard_error": 1.25 * spread / rounds**0.5}  # of the ring's median


def _spent(method: Any, model: Any, folder: Path, of: tuple[int, Any, int, Any]) -> float:
    """CPU microseconds of a forward."""
    many, *forward = of
    with method(model, folder) as recording:
        for _ in range(max(many // 2, 2)):
            _forward(model, *forward)
        began = time.process_time_ns()
        for _ in range(many):
            _forward(model, *forward)
        if isinstance(recording, Recording):
            recording.flush()
        return (time.process_time_ns() - began) / many / 1000


def _forward(model: Any, prompt: Any, new: int, past: Any) -> None:
    if past is None:
        model(prompt[:, :new], use_cache=False)
        return
    model(prompt[:, :1], cache=past, use_cache=True)
    past.crop(-1)


def write_us(folder: Path) -> float:
    """CPU microseconds per layer of a step's write: 58 layers, 8 ids of 256 experts, counting included."""
    sites = [Site(f"layers.{n}.gate", n, 256, 8) for n in range(58)]
    target = Ring(sites, {"engine": "bench"}, folder=folder)
    ids = np.random.default_rng(0).integers(0, 256, (1, 8))
    rounds = []
    for step in range(200):
        calls = [(site, 1, 2, ids) for site in range(58)]
        began = time.thread_time_ns()
        target.step(step, 1, 2, 1, calls=calls)
        rounds.append((time.thread_time_ns() - began) / 58 / 1000)
    held = RingReader(target.path).written
    target.close()
    if held != 59 * 200:
        raise SystemExit("records are missing")
    return statistics.median(rounds)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # where rings lie
        folder = Path(name)
        folder.chmod(0o700)
        table = {case: costs(model, *shape, options.rounds, folder) for case, shape in CASES.items()}
        written = write_us(folder)
    if options.json:
        print(json.dumps({"load": os.getloadavg()[0], "cases": table, "ring_write_us": written}))
    else:
        print(f"load {os.getloadavg()[0]:.1f}; CPU us per MoE layer beyond the forward without")
        names = "".join(f"{m.__name__:>10}" for m in METHODS)
        print(f"case         forward us {names}  ring's share  +-")
        for case, row in table.items():
            cells = "".join(f"{row[m.__name__]:10.1f}" for m in METHODS)
            share = row["ring"] * model.config.num_hidden_layers / row["forward"]
            print(f"{case:<12} {row['forward']:10.0f} {cells}  {share:11.1%} {row['standard_error']:4.1f}")
        print(f"ring write {written:.2f} us (58 layers x 256 experts, 8 ids)")
    sys.exit(written > WRITE_US or any(row["ring"] > RECORDING_US for row in table.values()))


if __name__ == "__main__":
    main()
