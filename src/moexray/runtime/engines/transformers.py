"""Hugging Face transformers: one table of router families, and the routers of a model read by it.

Glossary: *softmax* a softmax over all experts, then top-k; *chosen* top-k of the logits, then a softmax
over the chosen; *sigmoid* a sigmoid, then top-k; *given* top-k of the probabilities that the router returns
in place of logits. A bias is used for the choice only. Groups: experts side by side; a group's mark is the
sum of its best scores, and only the best groups may be used. Form of what a router returns: *triple*
(logits, weights, ids, ...); *dense* (weights of all experts, 0 where not chosen, logits); *sorted* (tokens
sorted by expert, ..., logits).

Ids are always taken from what the router returned, never computed from logits. A family without a rule can
be watched, but no policy may be put over it. A new one is a line in FAMILIES and a tiny model in
tests/tiny_models.py.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from moexray.core.errors import UsageError
from moexray.runtime.handle import Handle, Hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["FAMILIES", "TESTED", "Family", "Routing", "layer_of", "routers"]

TESTED = ("5.24.0",)  # releases whose routers the table was compared with
ROUTER = re.compile(r"(Router|TopKGating|MoEV1Gate)$")  # class names of all routers of these releases
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?)\.(\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True)
class Family:
    """Routers that compute alike.

    Args:
        name: What people call the models.
        routers: Regular expression for the whole class name.
        rule: How weights follow from logits; see the glossary. Empty: not known, policies are refused.
        form: Of what the router returns; see the glossary.
        norm: Weights are divided by their sum: yes, no, or the attribute that says so.
        eps: Added to that sum.
        floor: Attribute with the least that the sum is taken for.
        scale: Attribute with a factor on the weights; one per expert where it holds as many.
        bias: Attribute with the bias of the choice; "^" before it: of the block around the router.
        groups: A group's mark is the sum of so many of its best scores; 0: no groups.
        rounds: Scores and weights are computed in the dtype of the logits, not in float32.
        why: Why the rule is not known.
    """

    name: str
    routers: str
    rule: Literal["softmax", "chosen", "sigmoid", "given", ""]
    form: Literal["triple", "dense", "sorted"] = "triple"
    norm: bool | str = False
    eps: float = 0.0
    floor: str = ""
    scale: str = ""
    bias: str = ""
    groups: int = 0
    rounds: bool = False
    why: str = ""


FAMILIES = (
    Family("Mixtral", "MixtralTopKRouter", "softmax", norm=True),
    Family("Qwen2/3-MoE, Qwen3-Next, OLMoE", "(Qwen2Moe|Qwen3Moe|Qwen3Next|Olmoe)TopKRouter", "softmax",
           norm="norm_topk_prob"),
    Family("GPT-OSS, Granite-MoE", "(GptOss|GraniteMoe|GraniteMoeHybrid)TopKRouter", "chosen"),
    Family("DeepSeek V2", "DeepseekV2TopkRouter", "softmax", scale="routed_scaling_factor", groups=1),
    Family("DeepSeek V3, GLM4-MoE", "(DeepseekV3|Glm4Moe)TopkRouter", "sigmoid", norm="norm_topk_prob",
           eps=1e-20, scale="routed_scaling_factor", bias="e_score_correction_bias", groups=2, rounds=True),
    Family("HunYuan v1", "HunYuanMoEV1Gate", "softmax", norm=True),
    Family("Jamba", "JambaTopKRouter", "softmax"),
    Family("ERNIE 4.5", "Ernie4_5_MoeTopKRouter", "softmax", norm=True, floor="norm_min",
           bias="moe_statics.e_score_correction_bias"),
    Family("MiniMax M2", "MiniMaxM2TopKRouter", "sigmoid", norm=True, bias="^e_score_correction_bias"),
    Family("AFMoE", "AfmoeTokenChoiceRouter", "sigmoid", norm=True, eps=1e-20, scale="route_scale",
           bias="^expert_bias"),
    Family("LFM2-MoE", "Lfm2MoeTopKRouter", "sigmoid", norm="norm_topk_prob", eps=1e-6,
           scale="routed_scaling_factor", bias="^expert_bias", rounds=True),
    Family("Gemma 4", "Gemma4TextRouter", "given", norm=True, scale="per_expert_scale"),
    Family("Llama 4", "Llama4Router", "sigmoid", form="dense"),
    Family("JetMoE", "JetMoeTopKGating", "chosen", form="sorted"),
    Family("DeepSeek V4", "DeepseekV4(Hash|TopK)Router", "",
           why="in some layers a token's id names its experts, not the logits"),
    Family("Phi-MoE", "PhimoeTopKRouter", "", why="its sparse mixer chooses one expert after another"),
)  # fmt: skip


def layer_of(path: str) -> int | None:
    """The layer's number in a module's path ("model.layers.3.mlp.gate"); None where there is none."""
    found = LAYER.search(path)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Routing:
    """A router module read by its family; see engines.Router.

    Args:
        module: The router.
        path: Of it in the model.
        family: That it belongs to.
        block: The module around it.
    """

    module: Any
    path: str
    family: Family
    block: Any

    @property
    def layer(self) -> int | None:
        """Dense layers count."""
        return layer_of(self.path)

    @property
    def k(self) -> int:
        """Experts per token."""
        own = getattr(self.module, "top_k", None)
        return int(self.module.config.top_k_experts if own is None else own)

    @property
    def experts(self) -> int:
        """Experts to choose from."""
        own = getattr(self.module, "num_experts", None)
        return int(self.module.config.num_experts if own is None else own)

    def watch(self, told: Callable[..., None]) -> Callable[[], object]:
        """See engines.Router."""
        hooked: Callable[[], object] = self.module.register_forward_hook(Hook(told)).remove
        return hooked

    def ids(self, seen: Any) -> Tensor:
        """See engines.Router."""
        found: Tensor = seen[2] if self.family.form == "triple" else self.read(seen)[2]
        return found

    def read(self, output: Any) -> tuple[Tensor, Tensor, Tensor]:
        """See engines.Router. What the router says of its choice is put into another order, nothing else."""
        if self.family.form == "triple":
            logits, weights, ids = output[:3]
            return logits, weights, ids
        if self.family.form == "dense":
            dense, logits = output
            weights, ids = dense.topk(self.k, dim=1)
            return logits, weights, ids
        order, _, gates, sizes, logits = output
        flat = order.new_empty(order.shape)
        flat[order] = order.new_tensor([e for e, size in enumerate(sizes) for _ in range(size)])
        spread = gates.new_empty(gates.shape)
        spread[order] = gates
        return logits, spread.view(-1, self.k), flat.view(-1, self.k)

    def write(self, output: Any, weights: Tensor, ids: Tensor) -> Any:
        """See engines.Router."""
        if self.family.form == "triple":
            return (output[0], weights, ids, *output[3:])
        if self.family.form == "dense":
            return output[0].new_zeros(output[0].shape).scatter_(1, ids, weights), output[1]
        flat = ids.flatten()
        order = flat.sort(dim=0).indices
        sizes = flat.bincount(minlength=self.experts).tolist()
        return order, order.div(self.k, rounding_mode="trunc"), weights.flatten()[order], sizes, output[4]

    def scores(self, logits: Tensor) -> Tensor:
        """See engines.Router. Softmax keeps the order: without a bias the logits are the scores."""
        family = self.family
        sigmoid, bias = family.rule == "sigmoid", self._bias()
        logits = logits if family.rounds else logits.float()
        if bias is None:
            marked = logits.sigmoid() if sigmoid and family.form == "triple" else logits
        else:
            marked = (logits.sigmoid() if sigmoid else logits.softmax(dim=-1)) + bias
        marked = marked.float()
        if not self._is_grouped():
            return marked
        marks = marked if sigmoid else logits.softmax(dim=-1)
        return marked.masked_fill(~self._allowed(marks), -float("inf"))

    def _bias(self) -> Any:
        """[experts], or None."""
        name = self.family.bias
        if not name or getattr(self.module, "use_expert_bias", True) is False:
            return None
        found = self.block if name.startswith("^") else self.module
        for part in name.removeprefix("^").split("."):
            found = getattr(found, part)
        return found.reshape(-1)

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
        every = logits if family.rounds else logits.float()
        if family.rule != "given":
            every = every.sigmoid() if family.rule == "sigmoid" else every.softmax(dim=-1)
        picked = every.gather(1, ids)
        if family.rounds:
            picked = picked.to(logits.dtype)
        if gone is not None:
            picked = picked.masked_fill(gone, 0.0)
        if getattr(module, family.norm) if isinstance(family.norm, str) else family.norm:
            total = picked.sum(dim=-1, keepdim=True) + family.eps
            if family.floor:
                total = total.clamp(min=getattr(module, family.floor))
            picked = picked / (total if gone is None else total.clamp(min=1e-30))
        if family.scale:
            scale = getattr(module, family.scale)
            picked = picked * (scale[ids] if getattr(scale, "ndim", 0) else scale)
        return picked.to(like.dtype)

    def check(self) -> str:
        """Why the rule is not this router's: it is asked for a few rows, beside its hooks. Empty: it is."""
        import torch

        weight = next(self.module.parameters())
        if weight.device.type == "meta":
            return "its weights are not loaded"
        with torch.no_grad():
            width = max(p.shape[-1] for p in self.module.parameters() if p.ndim == 2)
            rows = torch.arange(8 * width, device=weight.device, dtype=torch.float32)
            rows = (rows * rows).cos().view(8, -1)  # no random numbers: the host's generator stays as it is
            logits, weights, ids = self.read(self._ask(rows.to(weight.dtype)))
            scores = self.scores(logits)
            if not torch.equal(self.weights(logits, ids, weights), weights):
                return "its weights follow another rule"
            own, best = scores.gather(1, ids).sort(dim=1).values, scores.topk(self.k, dim=1).values.flip(1)
            same = torch.allclose(own, best, rtol=1e-5, atol=1e-7)
            return "" if same else "its choice follows another rule"

    def _ask(self, rows: Tensor) -> Any:
        if not self.family.bias.startswith("^"):
            return self.module.forward(rows)
        if self.family.routers == "AfmoeTokenChoiceRouter":  # the only one that takes [batch, length, hidden]
            rows = rows[None]
        return self.module.forward(rows, self._bias())


def routers(model: Any, *, to_write: bool = True) -> list[Routing]:
    """See engines.routers. All or none: a model with one router that is not known is left alone.

    Args:
        model: A torch module.
        to_write: The rules are wanted, too, and each is compared with its router.

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
        block = model.get_submodule(path.rpartition(".")[0])
        routing = Routing(module, path, family or Family(name, name, "", why=_UNKNOWN), block)
        why = routing.family.why or routing.check() if to_write else "" if family else _UNKNOWN
        if why:
            known = "; ".join(f.name for f in FAMILIES if f.rule or not to_write)
            raise UsageError(
                f"{path}: {name}: {why}; nothing was changed",
                hint=f"families {'with a rule' if to_write else 'known'}: {known}",
            )
        found.append(routing)
    if not found:
        raise UsageError(f"{type(model).__name__} has no MoE router; nothing was changed")
    return found


def register() -> None:
    """Has each model of this process with routers recorded from its first forward on; safe twice."""
    if not _waiting:
        _waiting.append(Handle("attach", _wrap_models).attach())


def _wrap_models(handle: Any) -> None:
    from transformers.modeling_utils import PreTrainedModel

    original: Any = PreTrainedModel.post_init

    def post_init(self: Any) -> None:
        original(self)
        if handle.attached and any(ROUTER.search(type(m).__name__) for m in self.modules()):
            hooks.append((self, self.register_forward_pre_hook(Hook(first))))

    def first(model: Any, _args: Any) -> None:
        """Of a model and the models inside it the outermost is called first: that one is recorded."""
        from moexray.runtime.attach import attach

        inside = {id(module) for module in model.modules()}
        for one in [pair for pair in hooks if id(pair[0]) in inside]:
            one[1].remove()
            hooks.remove(one)
        _recordings.append(attach(model))

    hooks: list[tuple[Any, Any]] = []
    handle.replace(PreTrainedModel, "post_init", post_init)


_UNKNOWN = "this class is not known"
_waiting: list[Any] = []  # the wrapped constructor
_recordings: list[Any] = []  # of this process's models
