"""Hugging Face transformers: one table of router families, and the routers of a model read by it.

Glossary: *softmax* a softmax over all experts, then top-k; *chosen* top-k of the logits, then a softmax
over the chosen; *sigmoid* a sigmoid, top-k of it plus a bias that is used for the choice only. Groups:
experts side by side; a group's mark is the sum of its best scores, and only the best groups may be used.
A new family is a line in FAMILIES and a tiny model in tests/runtime/tiny_models.py.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FAMILIES", "TESTED", "Family", "Routing", "layer_of", "routers"]

TESTED = ("5.24.0",)  # releases whose routers the table was compared with
ROUTER = re.compile(r"(Router|TopKGating|MoEV1Gate)$")  # class names of all routers of these releases
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?)\.(\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True)
class Family:
    """Routers that compute alike; all return a tuple (logits, weights, ids, ...).

    Args:
        name: What people call the models.
        routers: Regular expression for the whole class name.
        rule: How weights follow from logits; see the glossary. Empty: not known, policies are refused.
        norm: Weights are divided by their sum: yes, no, or the attribute that says so.
        eps: Added to that sum.
        scale: Attribute with a factor on the weights.
        bias: Attribute with the bias of the choice.
        groups: A group's mark is the sum of so many of its best scores; 0: no groups.
        why: Why the rule is not known.
    """

    name: str
    routers: str
    rule: Literal["softmax", "chosen", "sigmoid", ""]
    norm: bool | str = False
    eps: float = 0.0
    scale: str = ""
    bias: str = ""
    groups: int = 0
    why: str = ""


FAMILIES = (
    Family("Mixtral", "MixtralTopKRouter", "softmax", norm=True),
    Family("Qwen2/3-MoE, Qwen3-Next, OLMoE", "(Qwen2Moe|Qwen3Moe|Qwen3Next|Olmoe)TopKRouter", "softmax",
           norm="norm_topk_prob"),
    Family("GPT-OSS, Granite-MoE", "(GptOss|GraniteMoe|GraniteMoeHybrid)TopKRouter", "chosen"),
    Family("DeepSeek V2", "DeepseekV2TopkRouter", "softmax", scale="routed_scaling_factor", groups=1),
    Family("DeepSeek V3, GLM4-MoE", "(DeepseekV3|Glm4Moe)TopkRouter", "sigmoid", norm="norm_topk_prob",
           eps=1e-20, scale="routed_scaling_factor", bias="e_score_correction_bias", groups=2),
    Family("HunYuan v1", "HunYuanMoEV1Gate", "softmax", norm=True),
    Family("Jamba", "JambaTopKRouter", "softmax"),
    Family("Llama 4", "Llama4Router", "", why="the scores stay dense: its experts take no ids"),
    Family("DeepSeek V4", "DeepseekV4HashRouter", "", why="a token's id names its experts, not the logits"),
    Family("JetMoE", "JetMoeTopKGating", "", why="it returns tokens sorted by expert, not ids per token"),
    Family("Phi-MoE", "PhimoeTopKRouter", "", why="its sparse mixer chooses one expert after another"),
)  # fmt: skip


def layer_of(path: str) -> int | None:
    """The layer's number in a module's path ("model.layers.3.mlp.gate"); None where there is none."""
    found = LAYER.search(path)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Routing:
    """A router module read by its family; see engines.Router."""

    module: Any
    path: str
    family: Family

    @property
    def layer(self) -> int | None:
        """Dense layers count."""
        return layer_of(self.path)

    @property
    def k(self) -> int:
        """Experts per token."""
        return int(self.module.top_k)

    @property
    def experts(self) -> int:
        """Experts to choose from."""
        return int(self.module.num_experts)

    def read(self, output: Any) -> tuple[Tensor, Tensor, Tensor]:
        """See engines.Router."""
        logits, weights, ids = output[:3]
        return logits, weights, ids

    def write(self, output: Any, weights: Tensor, ids: Tensor) -> Any:
        """See engines.Router."""
        return (output[0], weights, ids, *output[3:])

    def scores(self, logits: Tensor) -> Tensor:
        """See engines.Router. Softmax keeps the order: there the logits are the scores."""
        logits = logits.float()
        sigmoid = self.family.rule == "sigmoid"
        marked = logits.sigmoid() + _attribute(self.module, self.family.bias) if sigmoid else logits
        if not self._is_grouped():
            return marked
        marks = marked if sigmoid else logits.softmax(dim=-1)
        return marked.masked_fill(~self._allowed(marks), -float("inf"))

    def _is_grouped(self) -> bool:
        if not self.family.groups or getattr(self.module, "topk_method", "") == "greedy":
            return False
        return int(self.module.num_group) > 1

    def _allowed(self, scores: Tensor) -> Tensor:
        """[rows, experts], by the model's own calls: ties between groups fall as the model's do."""
        count = self.module.num_group
        inside = scores.view(scores.shape[0], count, -1)
        if self.family.groups == 1:
            marks = inside.max(dim=-1).values
        else:
            marks = inside.topk(self.family.groups, dim=-1).values.sum(dim=-1)
        best = marks.topk(self.module.topk_group, dim=-1, sorted=False).indices
        open_ = marks.new_zeros(marks.shape).scatter_(1, best, 1.0).bool()
        return open_[:, :, None].expand_as(inside).reshape(scores.shape)

    def weights(self, logits: Tensor, ids: Tensor, like: Tensor, gone: Tensor | None = None) -> Tensor:
        """See engines.Router."""
        family, module = self.family, self.module
        if family.rule == "chosen":
            picked = logits.gather(1, ids)
            if gone is not None:
                picked = picked.masked_fill(gone, -float("inf"))
            return picked.softmax(dim=-1).nan_to_num(0.0).to(like.dtype)
        every = logits.float()
        every = every.sigmoid() if family.rule == "sigmoid" else every.softmax(dim=-1)
        picked = every.gather(1, ids)
        if gone is not None:
            picked = picked.masked_fill(gone, 0.0)
        if getattr(module, family.norm) if isinstance(family.norm, str) else family.norm:
            total = picked.sum(dim=-1, keepdim=True) + family.eps
            picked = picked / (total if gone is None else total.clamp(min=1e-30))
        if family.scale:
            picked = picked * getattr(module, family.scale)
        return picked.to(like.dtype)

    def check(self) -> str:
        """Why the rule is not this router's: it is asked for a few rows, beside its hooks. Empty: it is."""
        import torch

        weight = next(self.module.parameters())
        if weight.device.type == "meta":
            return "its weights are not loaded"
        with torch.no_grad():
            rows = torch.arange(8 * weight.shape[1], device=weight.device, dtype=torch.float32)
            rows = (rows * rows).cos().view(8, -1)  # no random numbers: the host's generator stays as it is
            logits, weights, ids = self.read(self.module.forward(rows.to(weight.dtype)))
            scores = self.scores(logits)
            if not torch.equal(self.weights(logits, ids, weights), weights):
                return "its weights follow another rule"
            own, best = scores.gather(1, ids).sort(dim=1).values, scores.topk(self.k, dim=1).values.flip(1)
            same = torch.allclose(own, best, rtol=1e-5, atol=1e-7)
            return "" if same else "its choice follows another rule"


def _attribute(module: Any, name: str) -> Any:
    return getattr(module, name) if name else 0.0


def routers(model: Any) -> list[Routing]:
    """See engines.routers. All or none: a model with one router that is not known is left alone.

    Raises:
        UsageError: a release that was not tested, no router, an unknown one, or one that answers otherwise.
    """
    version = getattr(sys.modules.get("transformers"), "__version__", "none")
    if version not in TESTED:
        raise UsageError(
            f"transformers {version}: its routers were not compared with ours; nothing was changed",
            hint=f"tested releases: {', '.join(TESTED)}",
        )
    found = []
    for path, module in model.named_modules():
        name = type(module).__name__
        if not ROUTER.search(name):
            continue
        ours = type(module).__module__.startswith("transformers.models.")
        family = next((f for f in FAMILIES if ours and re.fullmatch(f.routers, name)), None)
        routing = Routing(module, path, family or Family(name, name, "", why="this class is not known"))
        why = routing.family.why or routing.check()
        if why:
            raise UsageError(
                f"{path}: {name}: {why}; nothing was changed",
                hint=f"families with a rule: {'; '.join(f.name for f in FAMILIES if f.rule)}",
            )
        found.append(routing)
    if not found:
        raise UsageError(f"{type(model).__name__} has no MoE router; nothing was changed")
    return found
