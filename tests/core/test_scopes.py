"""Names that speak of layers, experts, routers and tokens, and names that do not."""

import pytest

from moexray.core.scopes import NOTHING, SCOPES, Scope, inside, scope_of


def made(layer, expert, kind):
    return Scope(-1 if layer is None else layer, -1 if expert is None else expert, SCOPES.index(kind))


@pytest.mark.parametrize(
    ("name", "layer", "expert", "kind"),
    [
        ("layer_3.expert_5", 3, 5, "expert"),
        ("model.layers.3.mlp.experts.17.down_proj", 3, 17, "expert"),
        ("model.layers[3].block_sparse_moe.experts[0]", 3, 0, "expert"),
        ("model.layers.12.mlp.gate", 12, None, "router"),
        ("model.layers.12.mlp.gate_proj", 12, None, "layer"),
        ("transformer.h.7.attn", 7, None, "layer"),
        ("h.7.attn", 7, None, "layer"),
        ("blocks.2.ffn", 2, None, "layer"),
        ("block_2", 2, None, "layer"),
        ("layer_idx=9", 9, None, "layer"),
        ('{"layer_id": 4, "expert_id": 11}', 4, 11, "expert"),
        ("layer: 4 router", 4, None, "router"),
        ("Layer 0", 0, None, "layer"),
        ("decoder_layer_31", 31, None, "layer"),
        ("L3.E5", 3, 5, "expert"),
        ("L3_E5", 3, 5, "expert"),
        ("L12", 12, None, "layer"),
        ("MoELayer_2", 2, None, "layer"),
        ("layers_3_mlp_experts_17_gate", 3, 17, "expert"),
        ("nn.Module: Qwen3MoeDecoderLayer_3", 3, None, "layer"),
        ("nn.Module: TransformerBlock_3", 3, None, "layer"),
        ("nn.Module: Block_3", 3, None, "layer"),
        ("nn.Module: Expert_17", None, None, "expert"),
        ("nn.Module: TopKRouter_2", None, None, "router"),
        ("fused_experts_impl layers/fused_moe/fused_moe.py", None, None, "expert"),
        ("select_experts layers/fused_moe/layer.py", None, None, "router"),
        ("layer_3.shared_expert", 3, None, "expert"),
        ("layer_3.shared_experts_0", 3, None, "expert"),
        ("token 17", None, None, "token"),
        ("sampler.forward", None, None, "token"),
        ("layer_3.token_5", 3, None, "token"),
    ],
)
def test_a_name_is_read(name, layer, expert, kind):
    assert scope_of(name) == made(layer, expert, kind)


@pytest.mark.parametrize(
    "name",
    [
        "", "aten::mm", "layer_norm_1", "LayerNorm", "num_layers=32", "num_hidden_layers=32", "n_layer: 12",
        "kernel_block_64", "num_blocks=512", "triton_block_size_128", "L2Norm", "threshold.3", "player_3",
        "tokenizer", "gate_up_proj", "aten::linear", "nn.Module: Linear_3", "nn.Module: Qwen3MoeMLP_17",
        "void cutlass::Kernel2<L2>", "layers=32", "delegate", "forward", "layer_20250101",
    ],
)  # fmt: skip
def test_a_name_that_says_nothing(name):
    assert scope_of(name) == NOTHING


@pytest.mark.parametrize("name", ["num_experts=8", "n_experts: 8", "num_experts_8"])
def test_counts_of_experts_are_no_expert(name):
    assert scope_of(name).expert == -1


def test_the_inner_name_counts_and_the_outer_one_fills():
    assert inside(scope_of("expert_5"), scope_of("layer_3")) == made(3, 5, "expert")
    assert inside(scope_of("layer_3"), scope_of("token 17")) == made(3, None, "layer")
    assert inside(scope_of("layer_3"), scope_of("router")) == made(3, None, "router")
    assert inside(NOTHING, scope_of("layer_3")) == made(3, None, "layer")
    assert inside(scope_of("layer_1"), scope_of("layer_0.expert_2")) == made(1, 2, "expert")
