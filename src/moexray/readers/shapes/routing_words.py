"""What names of routing artefacts mean, whoever wrote them: roles by their words, not by exact keys."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["axis_of", "config_key", "count_columns", "is_combined", "role_of", "words"]

_CAMEL = lazy(r"(?<=[a-z0-9])(?=[A-Z])")
_SPLIT = lazy(r"[^a-z0-9]+")



def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FOREIGN = _names(
    "ms us ns s sec seconds byte bytes mib gib gb mb time latency dur duration bandwidth gbps input position "
    "positions offsets offset lens len replica replicas logcnt prefill request requests running waiting loss "
    "throughput wait watts"
)
_LOAD = _names(
    "count counts load loads token tokens hist histogram usage routed dispatched hits freq frequency heat "
    "hotness workload assignments combined returned cnt"
)
_UNIT = _names(
    "expert experts exp logical physical rank ranks gpu gpus device ep slot slots layer layers moe router "
    "routing routed combined dispatched returned"
)
_LOGITS = _names("logits logit scores probs probabilities prob gating")
_STEP = _names(
    "step steps iter iters iteration iterations window windows forward_pass_id forward_pass_ids window_id "
    "window_ids step_id step_ids pass_id forward_step step_idx batch_id snapshot engine_step"
)
_LAYER = _names(
    "layer layers layer_id layer_ids layer_idx layer_index layer_number moe_layer moe_layers moe_layer_id "
    "moe_layer_idx moe_layer_ids layers_logged"
)
_CONFIG = {
    "top_k": "top_k topk k num_experts_per_tok num_experts_per_token experts_per_token experts_per_tok "
    "moe_top_k moe_topk moe_router_topk router_topk router_top_k num_selected_experts n_activated_experts "
    "num_activated_experts moe_k num_top_k",
    "ep_size": "ep_size ep expert_parallel_size moe_ep_size ep_world_size num_ep_ranks ep_ranks n_ep "
    "expert_model_parallel_size world_size num_gpus n_gpus num_ranks n_ranks ranks gpus num_devices "
    "expert_tensor_size moe_expert_parallel_size device_count",
    "dp_size": "dp_size dp data_parallel_size",
    "tp_size": "tp_size tp tensor_parallel_size",
    "num_experts": "num_experts n_experts num_logical_experts n_routed_experts num_routed_experts "
    "num_local_experts moe_num_experts experts num_logical num_total_experts global_num_experts",
    "num_physical": "num_physical_experts num_slots num_physical physical_experts num_replicas",
    "num_redundant": "num_redundant_experts ep_num_redundant_experts redundant_experts",
    "slots_per_rank": "slots_per_gpu slots_per_rank experts_per_rank experts_per_gpu "
    "num_local_physical_experts local_num_experts slots_per_device",
    "tokens": "tokens num_tokens n_tokens total_tokens tokens_total token_count tokens_in_window "
    "num_input_tokens tokens_processed tokens_routed scheduled_tokens num_scheduled_tokens",
    "tokens_per_step": "tokens_per_step tokens_per_pass tokens_per_iteration tokens_per_forward "
    "tokens_per_window tokens_per_batch num_tokens_per_step batch_tokens",
    "num_layers": "num_layers num_moe_layers n_layers moe_layers_count num_hidden_layers moe_layer_count",
    "first_layer": "first_moe_layer first_layer first_k_dense_replace layer_offset",
    "window_size": "window_size",
    "expert_bytes": "expert_bytes bytes_per_expert expert_size_bytes expert_weight_bytes",
    "bytes_per_token": "bytes_per_token activation_bytes_per_token token_bytes",
    "rank": "rank ep_rank global_rank",
    "seed": "seed",
}
_CONFIG_KEY = {name: key for key, names in _CONFIG.items() for name in names.split()}
_P2L = lazy(
    r"(phys\w*|phy|slots?|replica|p)_?(to|2)_?(log\w*|experts?|l)(_|$)|(^|_)(placement|expert_location|"
    r"expert_map|global_assignments?|slot_experts?|expert_per_slot)(_|$)"
)
_L2P = lazy(r"(log\w*|experts?|l)_?(to|2)_?(phys\w*|phy|slots?|p)(_|$)")
_TOPK = lazy(
    r"(^|_)(top_?k|selected|chosen|routed|router|routing|expert|experts|dispatch)_?(expert_?)?"
    r"(ids?|idx|idxs|index|indices|indexes|experts|choices|selection)(_|$)|^(topk|ids|choices|selection)(_|$)"
    r"|^(selected|routed|chosen)_experts(_|$)|(^|_)topk(_|$)"
)
_WEIGHT = lazy(
    r"(^|_)(top_?k|router|routing|gate|gating|combine|expert)_?(weights?|scores?|probs?|vals?|values?)(_|$)"
    r"|^weights?$"
)


@lru_cache(maxsize=4096)
def words(name: str) -> str:
    """A name in lower case with single underscores: "tokensPerExpert" -> "tokens_per_expert"."""
    return _SPLIT.sub("_", _CAMEL.sub("_", name.rsplit("/", 1)[-1]).lower()).strip("_")


def config_key(name: str) -> str | None:
    """The canonical name of a number of a configuration, or None."""
    return _CONFIG_KEY.get(words(name))


@lru_cache(maxsize=4096)
def role_of(name: str) -> str | None:
    """What an array of that name holds.

    Returns:
        step, layer, placement, inverse (logical to physical), topk, scores (of the chosen),
        logits, counts, or None.
    """
    w = words(name)
    parts = frozenset(w.split("_"))
    if w in _STEP:
        return "step"
    if w in _LAYER:
        return "layer"
    if _L2P.search(w):
        return "inverse"
    if _P2L.search(w):
        return "placement"
    if parts & _LOGITS and not w.startswith(("topk", "top_k")):
        return "logits"
    if _WEIGHT.search(w):
        return "scores"
    counted = parts & _LOAD and not parts & _FOREIGN
    if _TOPK.search(w) and not (counted and not parts & {"routed"}):
        return "topk"
    if counted and (parts & _UNIT or w in ("counts", "count", "loads", "load", "tokens", "histogram")):
        return "counts"
    return "counts" if w in ("weight", "expert_weight", "load_matrix", "exp_counts") else None


def axis_of(name: str) -> str | None:
    """logical, physical or rank, as far as the words of a count's name say so."""
    parts = frozenset(words(name).split("_"))
    if parts & {"rank", "ranks", "gpu", "gpus", "device", "devices", "card", "ep"}:
        return "physical" if parts & {"physical", "slot", "slots"} else "rank"
    if parts & {"physical", "slot", "slots", "phy"}:
        return "physical"
    return "logical" if parts & {"logical", "log"} else None


def is_combined(name: str) -> bool:
    """Whether counts of that name are results that came back, not tokens that were sent."""
    return bool(frozenset(words(name).split("_")) & {"combined", "combine", "returned", "outputs", "merged"})


def count_columns(names: Iterable[str]) -> list[str]:
    """The names of counts in a long table (layer, expert, count); "num_tokens" is one beside a unit."""
    given = list(names)
    counted = [n for n in given if role_of(n) == "counts"]
    return counted or [n for n in given if config_key(n) == "tokens"]
