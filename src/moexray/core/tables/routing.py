"""Tables about expert routing: counts, placements, router choices, router scores.

Glossary: a *unit* is what a count belongs to: a logical expert, a physical expert (a slot that
holds a copy of a logical one), or an EP rank. A *choice* is one token-expert pair.
"""

from __future__ import annotations

from moexray.core.schema import Column, Table

__all__ = ["COUNTS", "LOGITS", "PLACEMENT", "ROUTES", "ROUTING_CONFIG", "TABLES"]

COUNTS = Table(
    "counts",
    "Token-expert pairs per unit: one row per recorded step and MoE layer (arrays). Facts of the "
    "batch: axis (logical, physical, rank), what (routed, combined), layout, ep_size, top_k, "
    "tokens, num_logical, rank (the rank that wrote the file), sum_over_ranks, zero_rows (left out).",
    (
        Column("step", "int", "", "Engine step, iteration or window; row number where none is given."),
        Column("layer", "int", "", "Layer as the file numbers it; -1 where the file has one layer unnamed."),
        Column("tokens", "object", "tokens", "One count per unit (a row of a matrix)."),
    ),
)

PLACEMENT = Table(
    "placement",
    "Which logical expert lies in each physical slot, slots in the order of the EP ranks (arrays). "
    "Facts of the batch: ep_size, num_logical, redundant.",
    (
        Column("step", "int", "", "Step from which it holds; -1 if it holds throughout."),
        Column("layer", "int", "", "Layer; -1 if it holds for every layer."),
        Column("slots", "object", "", "Logical expert per slot; -1 is an empty slot."),
    ),
)

ROUTES = Table(
    "routes",
    "Experts that the router chose: one row per layer and token (arrays). Facts of the batch: "
    "num_experts, arm (engine or variant as the file names it), seed, physical (ids are slots).",
    (
        Column("layer", "int", "", "Layer; -1 where the file has one layer unnamed."),
        Column("token", "int", "", "Position in the record, from 0."),
        Column("ids", "object", "", "The k chosen ids; -1 is padding."),
        Column("scores", "object", "", "Router weights of the chosen experts, where recorded."),
    ),
)

LOGITS = Table(
    "logits",
    "Router scores of every expert: one row per layer and token (arrays). Facts of the batch: "
    "kind (logits, probs), precision (float32, float16, bfloat16), top_k, arm.",
    (
        Column("layer", "int", "", "Layer; -1 where the file has one layer unnamed."),
        Column("token", "int", "", "Position in the record, from 0."),
        Column("values", "object", "", "One score per expert."),
    ),
)

ROUTING_CONFIG = Table(
    "routing_config",
    "Numbers of a configuration that routing arithmetic needs.",
    (
        Column("key", "str", "", "top_k, ep_size, dp_size, tp_size, num_experts, tokens, expert_bytes, ..."),
        Column("value", "float", "", "Its value."),
        Column("name", "str", "", "The key as the file writes it."),
    ),
)

TABLES: tuple[Table, ...] = (COUNTS, PLACEMENT, ROUTES, LOGITS, ROUTING_CONFIG)
