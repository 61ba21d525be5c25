"""Tiny random models of each router family: configured here, nothing is downloaded."""

import math

import torch
import transformers

torch.set_num_threads(1)  # threads that wait for each other cost more than they bring

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MOE = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
          "head_dim": 8, "num_key_value_heads": 4}  # fmt: skip
# more experts per token than groups, so that the best experts do not always lie in the best groups
GROUPED = {"num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5,
           "n_shared_experts": 1, "first_k_dense_replace": 1}  # fmt: skip

# name -> (prefix of the classes, configuration beyond SMALL)
MODELS = {
    "mixtral": ("Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2Moe", {**MOE, "num_experts": 8, "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1}),
    "qwen3_moe": ("Qwen3Moe", {**MOE, "num_experts": 8, "head_dim": 8, "norm_topk_prob": True}),
    "qwen3_next": ("Qwen3Next", {**MOE, "num_experts": 8, "head_dim": 8, "shared_expert_intermediate_size": 16,
                                 "layer_types": ["full_attention"] * 2}),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 2}),
    "gpt_oss": ("GptOss", {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 8,
                           "layer_types": ["full_attention"] * 2}),
    "deepseek_v2": ("DeepseekV2", {**MOE, **LATENT, **GROUPED, "n_routed_experts": 16,
                                   "topk_method": "group_limited_greedy"}),
    "deepseek_v2_greedy": ("DeepseekV2", {**MOE, **LATENT, **GROUPED, "n_routed_experts": 16, "topk_method": "greedy"}),
    "deepseek_v3": ("DeepseekV3", {**MOE, **LATENT, **GROUPED, "n_routed_experts": 16}),
    "glm4_moe": ("Glm4Moe", {**MOE, **GROUPED, "n_routed_experts": 16, "head_dim": 8}),
    "granite_moe": ("GraniteMoe", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "granite_moe_hybrid": ("GraniteMoeHybrid", {"num_local_experts": 8, "num_experts_per_tok": 2,
                                                "shared_intermediate_size": 16, "mamba_n_heads": 4,
                                                "layer_types": ["attention"] * 2}),
    "hunyuan_v1": ("HunYuanMoEV1", {"num_experts": 8, "moe_topk": 2, "head_dim": 8}),
    "jamba": ("Jamba", {"num_experts": 8, "num_experts_per_tok": 2, "expert_layer_period": 1,
                        "expert_layer_offset": 0, "attn_layer_period": 1, "attn_layer_offset": 0,
                        "use_mamba_kernels": False}),
    "llama4": ("Llama4", {"num_local_experts": 8, "num_experts_per_tok": 1, "head_dim": 8,
                          "intermediate_size_mlp": 32}),
    "jetmoe": ("JetMoe", {"num_local_experts": 8, "num_experts_per_tok": 2, "kv_channels": 8,
                          "num_key_value_heads": 2}),
    "phimoe": ("Phimoe", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "afmoe": ("Afmoe", {**MOE, "num_experts": 8, "num_dense_layers": 0, "head_dim": 8,
                        "layer_types": ["full_attention"] * 2}),
    "ernie": ("Ernie4_5_Moe", {"moe_intermediate_size": 16, "moe_num_experts": 8, "moe_k": 2,
                               "moe_num_shared_experts": 1, "moe_layer_start_index": 0, "moe_layer_interval": 1}),
    "minimax_m2": ("MiniMaxM2", {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 8, "rotary_dim": 8}),
    "lfm2_moe": ("Lfm2Moe", {**MOE, "num_experts": 8, "num_dense_layers": 0, "use_expert_bias": True,
                             "layer_types": ["full_attention"] * 2}),
    "gemma4": ("Gemma4", {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 16,
                          "head_dim": 8, "global_head_dim": 8, "layer_types": ["full_attention"] * 2,
                          "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}),
    "deepseek_v4": ("DeepseekV4", {**MOE, "n_routed_experts": 8, "n_shared_experts": 1, "head_dim": 16, "q_lora_rank": 16,
                                   "o_lora_rank": 8, "o_groups": 2, "num_key_value_heads": 1, "hc_mult": 2,
                                   "mlp_layer_types": ["hash_moe", "moe"], "layer_types": ["sliding_attention"] * 2}),
}  # fmt: skip
WITHOUT_RULE = ("phimoe", "deepseek_v4")
WITH_RULE = [name for name in MODELS if name not in WITHOUT_RULE]


def tiny(name, *, dtype=torch.float32, **changes):
    """A random model in eval mode; the bias of the choice is filled too, so that it matters."""
    prefix, config = MODELS[name]
    kind = f"{prefix}Text" if prefix in ("Llama4", "Gemma4") else prefix
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **config, **changes})
    generator = torch.Generator().manual_seed(1)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    with torch.no_grad():
        for key, value in [*model.named_parameters(), *model.named_buffers()]:
            if value.dtype.is_floating_point and "inv_freq" not in key and "norm" not in key:
                value.copy_(torch.randn(value.shape, generator=generator) / math.sqrt(value.shape[-1] if value.ndim else 1))
    return model.to(dtype).eval()


def tokens(rows=2, length=12):
    """[rows, length] token ids, the same each time."""
    return torch.randint(3, 64, (rows, length), generator=torch.Generator().manual_seed(2))
