"""Which layer, expert, router or token a name speaks of: module paths, annotations, function names.

How a number is read (letter case does not matter; a number has at most four digits):

| in the name | gives |
|---|---|
| `layer_3`, `layer 3`, `layer3`, `layer_idx=3`, `"layer_id": 3` | layer 3 |
| `layers.3`, `layers[3]`, `layers_3` | layer 3; `num_layers=3` and `layers=3` are counts |
| `blocks.3`, `block_3`, `h.3` behind a dot or at the start | layer 3 |
| `nn.Module: ...DecoderLayer_3`, `...TransformerBlock_3` | layer 3: an instance counter |
| `L3`, `L3.E5`, `L3_E5` at the start | layer 3, expert 5 |
| `expert_5`, `expert 5`, `expert5`, `expert_id=5`, `"expert": 5` | expert 5 |
| `experts.5`, `experts[5]`, `experts_5` | expert 5; `num_experts=5` is a count |

What the scope is, first hit wins: an expert's number, then a word of routers (router, routing, gate,
gating, select_experts, topk_softmax), of experts (expert, fused_moe, grouped_gemm, grouped_mm), of
tokens (token, sampler, sampling, logits, lm_head), then a layer's number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from moexray.core.pattern import lazy

__all__ = ["NOTHING", "SCOPES", "STEP_WORDS", "Scope", "inside", "scope_of"]

SCOPES = ("layer", "expert", "router", "token", "unknown")
"""Codes of the columns named `scope`: the position in the tuple. The last one is unknown."""

# Between the word and its number: `_idx`, a closing quote, a sign, an opening quote. A plural with a
# sign of equality is a count.
_ONE = r"(?:_?(?:idx|index|id|no|nr|number))?[\"']?\s*[-._:=\[(#/]?\s*[\"']?(\d{1,4})(?!\d)"
_MANY = r"\s?[._\[(/]?(\d{1,4})(?!\d)"
_NO_COUNT = r"(?<!num_)(?<!\bn_)(?<!num )"
MODULE = "nn.Module: "
MODULE_LAYER = lazy(
    r"(?:(?:decoder|encoder|transformer|hidden)_?(?:layer|block)|: block)_(\d{1,4})$", re.IGNORECASE
)
LAYER = lazy(
    rf"{_NO_COUNT}(?:(?<![a-z])layer|(?-i:Layer)){_ONE}|{_NO_COUNT}layers{_MANY}"
    r"|(?<![a-z0-9_])blocks?[._\[](\d{1,3})(?!\d)|(?<![a-z0-9_])h[.\[](\d{1,3})(?!\d)",
    re.IGNORECASE,
)
EXPERT = lazy(rf"{_NO_COUNT}(?<!shared_)expert{_ONE}|{_NO_COUNT}(?<!shared_)experts{_MANY}", re.IGNORECASE)
SHORT = lazy(r"L(\d{1,4})(?:[._/ -]?E(\d{1,4}))?(?=$|[._/:\s-])")
ROUTER = lazy(
    r"router|routing|gating|select_experts|topk_softmax|(?<![a-z_])(?:moe_)?gate(?![a-z_])", re.IGNORECASE
)
EXPERTS = lazy(r"experts?(?![a-z])|fused_?moe|grouped_(?:gemm|mm)", re.IGNORECASE)
TOKEN = lazy(r"(?<![a-z])tokens?(?![a-z])|sampler|sampling|logits|lm_head", re.IGNORECASE)

STEP_WORDS = lazy(r"step|iter|batch|forward|decode|generate|token", re.IGNORECASE)
"""What names of steps speak of."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a name says; -1 is an unknown number, `kind` a position in SCOPES."""

    layer: int = -1
    expert: int = -1
    kind: int = len(SCOPES) - 1


NOTHING = Scope()


@lru_cache(maxsize=65_536)
def scope_of(name: str) -> Scope:
    """Reads one name: a module path, an annotation, a function, a text of metadata."""
    if name.startswith(MODULE):  # numbers of other classes count instances over all layers
        found = MODULE_LAYER.search(name)
        layer, expert = (int(found[1]) if found else -1), -1
    elif short := SHORT.match(name):
        layer, expert = int(short[1]), int(short[2] or -1)
    else:
        layer, expert = _number(LAYER, name), _number(EXPERT, name)
    if expert >= 0:
        kind = "expert"
    elif ROUTER.search(name):
        kind = "router"
    elif EXPERTS.search(name):
        kind = "expert"
    elif TOKEN.search(name):
        kind = "token"
    else:
        kind = "layer" if layer >= 0 else "unknown"
    if kind == "unknown":
        return NOTHING
    return Scope(layer, expert, SCOPES.index(kind))


def _number(pattern: re.Pattern[str], name: str) -> int:
    found = pattern.search(name)
    return int(next(g for g in found.groups() if g is not None)) if found else -1


def inside(inner: Scope, outer: Scope) -> Scope:
    """What holds within both: the inner one counts, the outer one fills what it leaves open.

    A layer within a router or an expert (a stack below an annotation) is that router or expert.
    """
    layer = inner.layer if inner.layer >= 0 else outer.layer
    expert = inner.expert if inner.expert >= 0 else outer.expert
    narrower = SCOPES[inner.kind] == "layer" and SCOPES[outer.kind] in ("expert", "router")
    kind = outer.kind if inner.kind == NOTHING.kind or narrower else inner.kind
    return Scope(layer, expert, kind)
