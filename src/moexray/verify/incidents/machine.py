"""The machine of an incident: hosts that launch, devices that compute, collectives that wait for the last.

Each rank has a host clock and a device clock. The host launches a step's kernels ahead of the device and
waits for it at the end of the step. A collective begins on a rank when it was launched and the rank's
compute is over, and ends on all ranks when the last has arrived and the bytes are over. All random
numbers are drawn before the run (`Noise`), so a run without a cause differs by the cause alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from moexray.verify.incidents.plan import FREES, PAUSES, Cause, Plan

__all__ = ["MOVE", "Event", "Noise", "Story", "run"]

LAUNCH = 4.0  # us of a launch call
OPERATOR = 7.0  # us of an operator around it
LATENCY = 5.0  # us from the end of a launch call to the start of its kernel on an idle device
GRAPH_GAP = 1.0  # us between kernels of a graph
STEP = 1_200.0  # us of a layer, about: what the sizes of lasting host causes are counted in
MOVE = 180_000.0  # us of a move of experts in the background, a decoy
COMPILING = "triton/compiler/compiler.py(245): compile"
CLEARING = "torch/cuda/memory.py(222): empty_cache"
MAKING = "triton/backends/nvidia/compiler.py(410): make_cubin"
TAIL = 30.0  # us of sampling and copying the tokens at the end of a step


class Event(NamedTuple):
    """One slice on a lane: "host", "thread", "compute", "side" or "comm"; true time in us."""

    cat: str
    name: str
    lane: str
    start: float
    dur: float
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Noise:
    """Random numbers of one incident.

    Args:
        attention, gemm, moved: us of a layer at balanced load; moved is one collective.
        batch: [steps] relative batch.
        work: [steps, layers, ranks, 3] factor of attention, router and GEMM.
        wire: [steps, layers, 2] factor of the two collectives.
        prepare: [steps, ranks] us that the scheduler takes before a step.
        pause: [steps] factor of a pause.
        tokens: [steps, layers, ranks] relative load of an even router.
        shape: [experts] uneven part of the load within a rank.
    """

    attention: float
    gemm: float
    moved: float
    batch: np.ndarray
    work: np.ndarray
    wire: np.ndarray
    prepare: np.ndarray
    pause: np.ndarray
    tokens: np.ndarray
    shape: np.ndarray

    @classmethod
    def of(cls, plan: Plan) -> Noise:
        """Draws them."""
        rng = np.random.default_rng([plan.seed, 7])
        steps, layers, ranks = plan.steps, plan.layers, plan.ranks
        batch = 1 + 0.04 * np.sin(np.arange(steps) / rng.uniform(3, 9)) + rng.normal(0, 0.01, steps)
        batch[list(plan.prefill)] *= rng.uniform(1.8, 3.0, len(plan.prefill))
        return cls(
            float(rng.uniform(250, 700)), float(rng.uniform(500, 1400)), float(rng.uniform(90, 260)),
            batch,
            np.exp(rng.normal(0, 0.012, (steps, layers, ranks, 3)) + rng.normal(0, 0.006, (ranks, 1))),
            np.exp(rng.normal(0, 0.03, (steps, layers, 2))),
            rng.gamma(9, 12, (steps, ranks)),
            rng.uniform(0.7, 1.4, steps),
            np.exp(rng.normal(0, 0.01, (steps, layers, ranks))),
            rng.uniform(0.6, 1.4, plan.experts),
        )  # fmt: skip


@dataclass(slots=True)
class Story:
    """What happened.

    Args:
        events: Slices of each rank.
        begin, end: [steps] us: first host begins, last device ends.
        load: [steps, layers, ranks] relative tokens of each rank.
        pauses: (cause, step, start us, length us) of each.
    """

    events: list[list[Event]]
    begin: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    load: np.ndarray = field(default_factory=lambda: np.empty(0))
    pauses: list[tuple[Cause, int, float, float]] = field(default_factory=list)

    def moves_behind(self) -> list[float]:
        """When experts begin to move in the background, us; a decoy, one after the other."""
        return [float(t) for t in np.arange(self.begin[2] + 10_000, self.end[-1] - MOVE, 2.2 * MOVE)]

    @property
    def steps_s(self) -> np.ndarray:
        """[steps - 1] seconds from the end of a step to the end of the next."""
        return np.diff(np.asarray(self.end)) / 1e6


class _Rank:
    """Clocks of one rank, and its slices if they are wanted."""

    def __init__(self, *, keep: bool) -> None:
        self.host = self.device = self.comm_free = 0.0
        self.keep, self.calls = keep, 0
        self.events: list[Event] = []
        self.graph: int | None = None

    def add(self, cat: str, name: str, lane: str, start: float, dur: float, **args: Any) -> None:
        if self.keep:
            self.events.append(Event(cat, name, lane, start, dur, args))

    def launch(self, operator: str, call: str = "cudaLaunchKernel") -> tuple[int, float]:
        """(correlation, earliest start); inside a graph the graph launched it."""
        if self.graph is not None:
            return self.graph, self.device + GRAPH_GAP
        self.calls += 1
        self.add("cpu_op", operator, "host", self.host, OPERATOR)
        self.add("cuda_runtime", call, "host", self.host + 1.5, LAUNCH, correlation=self.calls)
        self.host += OPERATOR + 1.0
        return self.calls, self.host + LATENCY

    def kernel(self, operator: str, name: str, dur: float) -> None:
        correlation, ready = self.launch(operator)
        start = max(ready, self.device, self.comm_free)
        self.add("kernel", name, "compute", start, dur, correlation=correlation)
        self.device = start + dur

    def call(self, name: str, dur: float) -> None:
        """A runtime call that blocks the host."""
        self.calls += 1
        self.add("cuda_runtime", name, "host", self.host, dur, correlation=self.calls)
        self.host += dur + 1.0


def run(plan: Plan, noise: Noise, *, keep: bool = False) -> Story:
    """Runs the machine.

    Args:
        plan: With the causes that act.
        noise: Of the plan that was drawn, whatever causes are left.
        keep: Note the slices.
    """
    ranks = [_Rank(keep=keep) for _ in range(plan.ranks)]
    story = Story([r.events for r in ranks], load=_load(plan, noise))
    for step in range(plan.steps):
        story.begin.append(min(r.host for r in ranks))
        _hiccup(plan, ranks, step)
        _rearrange(plan, noise, story, ranks, step)
        opened = _open(plan, noise, story, ranks, step)
        for layer in range(plan.layers):
            _layer(plan, noise, story, ranks, step, layer)
        for r, begin in zip(ranks, opened, strict=True):
            r.graph = None
            r.kernel("aten::argmax", "sampling::argmax_kernel", TAIL)
            r.call("cudaStreamSynchronize", max(r.device - r.host, 3.0))
            _note(plan, r, step, begin)
        story.end.append(max(r.device for r in ranks))
    return story


def _open(plan: Plan, noise: Noise, story: Story, ranks: list[_Rank], step: int) -> list[float]:
    """The host's part before the first layer; returns where the step's annotation begins."""
    opened = []
    for at, r in enumerate(ranks):
        _pause(plan, noise, story, r, (at, step, -1))
        r.host += float(noise.prepare[step, at]) + _held_up(plan, noise, "contention", at, step)
        opened.append(r.host)
        r.host += 6.0
        _clear(plan, noise, r, at, step)
        if plan.graphs:
            _pause(plan, noise, story, r, (at, step, None))
            correlation, ready = r.launch("engine::replay", "cudaGraphLaunch")
            r.host += 40.0
            r.device = max(r.device, ready + 40.0)
            r.graph = correlation
    return opened


def _hiccup(plan: Plan, ranks: list[_Rank], step: int) -> None:
    """A decoy: once, a rank prepares its step for two steps' time; real hosts do."""
    if "hiccup" in plan.decoys and step == plan.steps // 3:
        innocent = [r for at, r in enumerate(ranks) if at not in plan.accused]
        if innocent:
            innocent[plan.seed % len(innocent)].host += 2 * 500.0 * plan.layers


def _rearrange(plan: Plan, noise: Noise, story: Story, ranks: list[_Rank], step: int) -> None:
    """Experts move between two steps: all ranks meet, and none goes on before the end."""
    for c in plan.causes:
        if c.kind == "rearrange" and step in c.steps:
            start, length = max(r.host for r in ranks), c.size * float(noise.pause[step])
            for r in ranks:
                r.add("user_annotation", "eplb_rearrange", "host", start + 10, length - 20)
                r.host = start + length
            story.pauses.append((c, step, start, length))


def _held_up(plan: Plan, noise: Noise, kind: str, rank: int, step: int) -> float:
    """What a lasting cause takes of a rank's host in a step, us."""
    mine = [c for c in plan.causes if c.kind == kind and c.rank == rank and step in c.steps]
    return sum(c.size * STEP * plan.layers * float(noise.pause[step]) for c in mine)


def _clear(plan: Plan, noise: Noise, r: _Rank, rank: int, step: int) -> None:
    """empty_cache, and what it costs: segments given back and fetched again."""
    length = _held_up(plan, noise, "clear", rank, step)
    if length:
        start = r.host
        for name, part in (("cudaFree", 0.3), ("cudaFree", 0.3)):
            r.call(name, part * length)
        r.add("python_function", CLEARING, "host", start - 2, r.host - start + 3)
        for name, part in (("cudaMalloc", 0.2), ("cudaMalloc", 0.2)):
            r.call(name, part * length)


def _layer(plan: Plan, noise: Noise, story: Story, ranks: list[_Rank], step: int, layer: int) -> None:
    load = story.load[step, layer]
    slow = {c.rank: c.size for c in plan.causes if c.kind == "slow_rank" and step in c.steps}
    for at, r in enumerate(ranks):
        batch = float(noise.batch[step]) * slow.get(at, 1.0)
        if not plan.graphs:
            _pause(plan, noise, story, r, (at, step, layer))
        work = noise.work[step, layer, at]
        r.kernel(
            "engine::attention", "flash::decode_attention_kernel<bf16>", noise.attention * batch * work[0]
        )
        r.kernel("engine::topk", "engine::moe::topk_softmax_kernel", 6.0 * work[1])
    _exchange(plan, noise, ranks, (step, layer, 0), load)
    for at, r in enumerate(ranks):
        batch = float(noise.batch[step]) * slow.get(at, 1.0)
        work = float(noise.work[step, layer, at, 2])
        r.kernel(
            "engine::experts", "engine::grouped_gemm_kernel<fp8>", 20 + noise.gemm * batch * load[at] * work
        )
    _exchange(plan, noise, ranks, (step, layer, 1), load)


NAMES = {
    "deepep": ("deep_ep::internode_ll::dispatch<true, 7168>", "deep_ep::internode_ll::combine<false, 7168>"),
    "nccl": ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",) * 2,
}


def _exchange(
    plan: Plan, noise: Noise, ranks: list[_Rank], at: tuple[int, int, int], load: np.ndarray
) -> None:
    """A collective of all ranks; the fullest one sets its time."""
    step, layer, way = at
    sent = float(load.max() * noise.batch[step])
    took = (25 + noise.moved * (0.3 + 0.7 * sent)) * float(noise.wire[step, layer, way])
    for c in plan.causes:
        if c.kind == "slow_link" and step in c.steps:
            took *= c.size
    arrived = []
    for r in ranks:
        correlation, ready = r.launch(("moe::dispatch", "moe::combine")[way], "cudaLaunchKernelExC")
        arrived.append((max(ready, r.device + 1.0, r.comm_free), correlation))
    end = max(start for start, _ in arrived) + took
    elements = int(noise.batch[step] * 4096) * 256
    seq = 2 * (step * plan.layers + layer) + way
    for at_rank, (r, (start, correlation)) in enumerate(zip(ranks, arrived, strict=True)):
        more = {}
        if plan.metadata:
            full = int(elements * load[at_rank])  # of the rank's experts
            come, go = (full, elements) if way == 0 else (elements, full)
            more = {
                "Collective name": "all_to_allv", "In msg nelems": go, "Out msg nelems": come,
                "Group size": plan.ranks, "dtype": "BFloat16", "Process Group Name": "3", "Seq": seq,
                "Process Group Description": "ep", "Process Group Ranks": str(list(range(plan.ranks))),
            }  # fmt: skip
        late = 0.3 * at_rank  # ends differ by less than a microsecond or two
        r.add(
            "kernel",
            NAMES[plan.library][way],
            "comm",
            start,
            end + late - start,
            correlation=correlation,
            **more,
        )
        r.comm_free = end + late
        if plan.overlap and way == 0:  # shared experts need no tokens of others
            beside = 0.6 * noise.moved * float(noise.batch[step])
            r.add(
                "kernel", "engine::shared_expert_kernel", "side", start + 3.0, beside, correlation=correlation
            )
            late += max(start + 3.0 + beside - r.comm_free, 0.0)
        r.device = max(r.device, end + late)


def _pause(plan: Plan, noise: Noise, story: Story, r: _Rank, at: tuple[int, int, int | None]) -> None:
    """Stops the host of a rank where a cause says so; a graph leaves only the place before its launch."""
    rank, step, layer = at
    for c in plan.causes:
        here = layer == c.layer or (layer is None and c.layer >= 0)
        if c.kind not in PAUSES or c.rank != rank or step not in c.steps or not here:
            continue
        length = c.size * float(noise.pause[step])
        start = r.host
        if c.kind == "alloc":
            r.call("cudaMalloc", 300.0)
            for _ in range(FREES):  # a release waits for the device
                r.call("cudaFree", max(r.device - r.host, 0.0) + 0.7 * length / FREES)
            r.call("cudaMalloc", 0.3 * length)
            r.add("cpu_op", "aten::empty", "host", start - 2, r.host - start + 3)
        else:
            r.host += length
            if c.kind == "jit":
                r.add(
                    "python_function",
                    COMPILING,
                    "host",
                    start + 40,
                    length - 80,
                )
                r.add("python_function", MAKING, "host", start + 90,
                      0.6 * length)  # fmt: skip
            if c.kind == "gc":
                r.add("python_function", "Python GC", "host", start + 30, length - 60)
        story.pauses.append((c, step, start, r.host - start))


def _note(plan: Plan, r: _Rank, step: int, begin: float) -> None:
    names = {
        "profiler": f"ProfilerStep#{step}",
        "engine": "execute_context_0(0)_generation_64(64)",
        "sglang": "step[DECODE bs=64 toks=64]",
    }
    if plan.notes in names:
        r.add("user_annotation", names[plan.notes], "host", begin, r.host - begin)


def _load(plan: Plan, noise: Noise) -> np.ndarray:
    """[steps, layers, ranks] tokens of each rank over the mean."""
    load = noise.tokens / noise.tokens.mean(axis=2, keepdims=True)
    for c in plan.causes:
        if c.kind in ("skew", "drift"):
            rest = (plan.ranks - c.size) / (plan.ranks - 1)
            factor = np.full(plan.ranks, rest)
            factor[c.rank] = c.size
            for layer in c.layers:
                here = load[c.steps[0] :, layer]
                here *= factor
                here /= here.mean(axis=1, keepdims=True)
    return np.asarray(load)
