"""Trains the lab's models: a Qwen3-MoE of 1.9 million parameters on the corpus, one thread, fixed seeds.

Two models differ in the load-balancing loss alone: that of `skewed` looks at the mix of all domains, so its
experts specialise by domain; that of `balanced` looks at each domain by itself and is heavier. Neither is a
good language model; their routing is real.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moexray.core.errors import UsageError
from moexray.verify.lab.corpus import DOMAINS, documents

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

__all__ = ["RECIPES", "Recipe", "train"]

VOCABULARY = 1_024
HELD_OUT = 10  # every tenth document is kept for prompts
PROMPTS, PROMPT_CHARS = 96, 600  # per domain
MOST_CHARS = 4_000_000  # of a domain
BATCH, LENGTH = 16, 192  # sequences, tokens
RATE, WARM_UP = 2e-3, 20  # AdamW's peak step, steps of warm-up

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained.

    Args:
        balance: Weight of the load-balancing loss (Switch Transformer, eq. 4).
        each: The loss is that of each domain by itself, not that of the mix.
        steps: Of training.
        seed: Of weights and batches.
    """

    balance: float
    each: bool = False
    steps: int = 450
    seed: int = 1


RECIPES = {"skewed": Recipe(0.01), "balanced": Recipe(0.1, each=True)}


def train(folder: Path, recipe: Recipe, say: Callable[[str], None] = logger.info) -> float:
    """Trains a model and writes weights (bf16), configuration, tokenizer and prompts.

    Args:
        folder: Where to write; it is made.
        recipe: What to train.
        say: Gets a line now and then.

    Returns:
        The last loss, nats per token.

    Raises:
        UsageError: no sources to train on, torch or transformers is not installed, steps below 1.
    """
    if recipe.steps < 1:
        raise UsageError(f"{recipe.steps} steps", hint="train at least one step")
    try:
        import tokenizers  # noqa: F401
        import torch
        import transformers  # noqa: F401
    except ImportError as why:
        raise UsageError(f"{why.name} is not installed", hint="pip install 'moexray[lab]'") from why
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    texts, prompts = _split()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(texts)
    tokens = {d: _encoded(tokenizer, texts[d]) for d in DOMAINS}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model, loss = _fitted(tokens, recipe, say)
    finally:
        torch.set_num_threads(threads)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096, "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind, indent=1) + "\n")
    (folder / "prompts.json").write_text(json.dumps(prompts, ensure_ascii=False, indent=0) + "\n", "utf-8")
    return loss


def _split() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Text to train on, and prompts from the documents held out."""
    texts, prompts = {}, {}
    for domain in DOMAINS:
        every = documents(domain)
        texts[domain] = [text for at, text in enumerate(every) if at % HELD_OUT]
        unseen = [text for at, text in enumerate(every) if not at % HELD_OUT]
        cuts = [
            t[at : at + PROMPT_CHARS] for t in unseen for at in range(0, len(t) - PROMPT_CHARS, PROMPT_CHARS)
        ]
        prompts[domain] = cuts[:: max(1, len(cuts) // PROMPTS)][:PROMPTS]
    return texts, prompts


def _tokenizer(texts: dict[str, list[str]]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>"],
        initial_alphabet=sorted(letters),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_cut(texts[d], MOST_CHARS // 8) for d in DOMAINS), trainer)
    return tokenizer


def _encoded(tokenizer: Any, texts: list[str]) -> np.ndarray:
    import numpy as np

    text = _cut(texts, MOST_CHARS)
    pieces = [text[at : at + 10_000] for at in range(0, len(text), 10_000)]
    return np.concatenate([np.array(tokenizer.encode(piece).ids, np.int64) for piece in pieces])


def _cut(texts: list[str], most: int) -> str:
    """The texts in an order that mixes them, as far as `most` characters."""
    import numpy as np

    order = np.random.default_rng(0).permutation(len(texts))
    return "\n\n".join(texts[at] for at in order)[:most]


def _fitted(tokens: dict[str, np.ndarray], recipe: Recipe, say: Callable[[str], None]) -> tuple[Any, float]:
    import numpy as np
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(recipe.seed)
    sizes: dict[str, Any] = dict(  # noqa: C408  mypy knows fewer names than the configuration takes
        vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, intermediate_size=256, moe_intermediate_size=64, num_experts=16,
        num_experts_per_tok=2,
        decoder_sparse_step=1, norm_topk_prob=True, max_position_embeddings=4096, tie_word_embeddings=True,
        router_aux_loss_coef=recipe.balance, output_router_logits=True, experts_implementation="grouped_mm",
        bos_token_id=None, eos_token_id=0, pad_token_id=None, use_cache=False,
    )  # fmt: skip
    model: Any = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes)).train()
    steps = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    rng = np.random.default_rng(recipe.seed)
    loss = float("nan")
    for step in range(recipe.steps):
        rows = [_row(rng, tokens[DOMAINS[at % len(DOMAINS)]]) for at in range(BATCH)]
        batch = torch.from_numpy(np.stack(rows))
        for group in steps.param_groups:
            left = 1 - step / recipe.steps
            group["lr"] = RATE * min((step + 1) / WARM_UP, 0.1 + 0.9 * left)
        out = model(input_ids=batch, labels=batch)
        text = out.loss - recipe.balance * out.aux_loss
        uneven = _uneven(out.router_logits) if recipe.each else out.aux_loss
        steps.zero_grad()
        (text + recipe.balance * uneven).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        loss = float(text.detach())
        if step % 20 == 0 or step == recipe.steps - 1:
            say(f"step {step + 1} of {recipe.steps}: loss {loss:.2f}, imbalance {float(uneven.detach()):.3f}")
    model.config.output_router_logits = False
    model.config.use_cache = True
    return model.eval(), loss


def _uneven(logits: tuple[Any, ...]) -> Any:
    """The load-balancing loss of each domain by itself, on average; rows go through the domains in turn."""
    import torch
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    experts = logits[0].shape[-1]
    parts = [layer.view(BATCH, LENGTH, experts) for layer in logits]
    losses = [
        load_balancing_loss_func(tuple(p[at :: len(DOMAINS)].reshape(-1, experts) for p in parts), experts, 2)
        for at in range(len(DOMAINS))
    ]
    return torch.stack([torch.as_tensor(x) for x in losses]).mean()


def _row(rng: np.random.Generator, tokens: np.ndarray) -> np.ndarray:
    at = int(rng.integers(len(tokens) - LENGTH))
    return tokens[at : at + LENGTH]
