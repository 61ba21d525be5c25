"""A plan as the file that an engine takes, and how to hand it over.

Sources (field names): SGLang srt/eplb/expert_location.py (`--init-expert-location`), TensorRT-LLM
examples/wide_ep/ep_load_balancer, DeepSeek EPLB `rebalance_experts`, vllm-ascend `expert_map_path`,
vllm#49572 (proposed: no release of vLLM up to 0.32 loads a placement).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from moexray.algorithms.placement import trivial
from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moexray.whatif.placement import Plan

__all__ = ["ENGINES", "engine_file", "filled", "handover"]

POSITIONAL = ("vllm", "vllm-ascend", "eplb")  # row i is MoE layer i of the model: no row may be missing


def engine_file(plan: Plan, engine: str, lost: Sequence[int] = ()) -> str:
    """The text of the file.

    Args:
        plan: What to write.
        engine: One of ENGINES.
        lost: Layers without counts that may be MoE layers of the model, see `Traffic.lost`.

    Raises:
        UsageError: rows of the file have no layer number, and one would stand in the place of a lost layer.
    """
    if lost and engine in POSITIONAL:
        names = ", ".join(map(str, lost[:8])) + (", ..." if len(lost) > 8 else "")
        raise UsageError(
            f"no counts of layer {names}, and rows of this format have no layer number: the plan of a later "
            "layer would stand in its row",
            where=f"--for {engine}",
            hint="record that layer, too; or --for sglang or trtllm, or none, where each layer is numbered",
        )
    return ENGINES[engine][0](plan)


def filled(plan: Plan, engine: str) -> str:
    """What the file has for layers before the last one that have no counts; "" where there are none."""
    labels = {y.layer for y in plan.layers}
    gaps = [y for y in range(max(labels)) if y not in labels]
    if not gaps or engine in POSITIONAL:
        return ""
    names = ", ".join(map(str, gaps[:8])) + (", ..." if len(gaps) > 8 else "")
    what = "filled with the trivial layout" if engine == "sglang" else "not in the file"
    return f"layer {names}: {what} (dense, or no counts of it)"


def handover(plan: Plan, engine: str, path: str) -> str:
    """What to set so that the engine takes the file, in one line."""
    shape = plan.shape
    return ENGINES[engine][1].format(path=path, gpus=shape.gpus, extra=shape.slots - shape.experts)


def _sglang(plan: Plan) -> str:
    """One row per layer of the model; rows of layers without counts (dense ones) are trivial."""
    rows = {max(y.layer, 0): y.slots for y in plan.layers}
    plain = trivial(plan.shape)
    table = [rows.get(i, plain).tolist() for i in range(max(rows) + 1)]
    return _json({"physical_to_logical_map": table})


def _vllm(plan: Plan) -> str:
    return _json([y.slots.tolist() for y in plan.layers])


def _ascend(plan: Plan) -> str:
    gpus = plan.shape.gpus
    layers = []
    for i, y in enumerate(plan.layers):
        rows = enumerate(y.slots.reshape(gpus, -1).tolist())
        devices = [{"device_id": d, "device_expert": row} for d, row in rows]
        layers.append({"layer_id": i, "device_count": gpus, "device_list": devices})
    return _json({"moe_layer_count": len(layers), "layer_list": layers})


def _trtllm(plan: Plan) -> str:
    """YAML; JSON lists are YAML lists."""
    rows = [f"  {max(y.layer, 0)}: {json.dumps(y.slots.tolist())}" for y in plan.layers]
    head = [f"num_slots: {plan.shape.slots}", "layer_updates_per_iter: 0", "initial_global_assignments:"]
    return "\n".join([*head, *rows]) + "\n"


def _eplb(plan: Plan) -> str:
    """The three arrays that `rebalance_experts` returns."""
    phy2log = np.array([y.slots for y in plan.layers])
    counts = np.array([np.bincount(row, minlength=plan.shape.experts) for row in phy2log])
    log2phy = np.full((*counts.shape, int(counts.max())), -1)
    for y, row in enumerate(phy2log):
        seen = np.zeros(plan.shape.experts, np.int64)
        for slot, expert in enumerate(row):
            log2phy[y, expert, seen[expert]] = slot
            seen[expert] += 1
    return _json({"phy2log": phy2log.tolist(), "log2phy": log2phy.tolist(), "logcnt": counts.tolist()})


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":")) + "\n"


_VLLM = (
    '--enable-eplb --eplb-config \'{{"initial_expert_map_path": "{path}", "num_redundant_experts": {extra}'
    "}}' (proposed in vllm#49572; no release up to 0.32 loads a placement)"
)
# engine -> (writes its file, what to set)
ENGINES: Mapping[str, tuple[Callable[[Plan], str], str]] = {
    "sglang": (_sglang, "--init-expert-location {path} --ep-num-redundant-experts {extra} --ep-size {gpus}"),
    "vllm": (_vllm, _VLLM),
    "vllm-ascend": (_ascend, "expert_map_path: {path} in additional_config, EP size {gpus}"),
    "trtllm": (
        _trtllm,
        "moe_config: {{load_balancer: {path}}}, moe_expert_parallel_size: {gpus}, with attention DP",
    ),
    "eplb": (_eplb, "phy2log, log2phy and logcnt are what rebalance_experts returns"),
}
