"""The lab's models and prompts, as they lie in the package; `moexray lab train` makes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FOLDER", "MODELS", "Prompts", "folder_of", "load", "token"]

FOLDER = Path(__file__).parent / "models"
MODELS = ("skewed", "balanced")


def folder_of(name: str) -> Path:
    """Where a model lies.

    Args:
        name: One of `MODELS`, or the folder of one that was trained.

    Raises:
        UsageError: no such model.
    """
    folder = FOLDER / name if name in MODELS else Path(name)
    if not (folder / "model.safetensors").is_file():
        raise UsageError(
            f"no model in {folder}", hint=f"one of {', '.join(MODELS)}, or the folder of `lab train`"
        )
    return folder.absolute()


def load(name: str) -> Any:
    """A model of transformers, in float32, ready to run.

    Args:
        name: One of `MODELS`, or the folder of one that was trained.

    Raises:
        UsageError: no such model, or transformers is not installed.
    """
    try:
        import torch
        from transformers import Qwen3MoeForCausalLM
        from transformers.utils import logging
    except ImportError as why:
        raise UsageError(f"{why.name} is not installed", hint="pip install 'moexray[lab]'") from why
    folder = folder_of(name)
    quiet: Any = logging
    quiet.disable_progress_bar()
    model: Any = Qwen3MoeForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        local_files_only=True,
        attn_implementation="sdpa",
        experts_implementation="eager",
    )
    return model.eval()


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts of a domain as windows of tokens.

    Args:
        tokens: int64 [windows, length].
    """

    tokens: np.ndarray

    @classmethod
    def of(cls, domains: Sequence[str], length: int) -> Prompts:
        """Windows of the prompts of some domains, mixed in equal parts.

        Args:
            domains: Of the corpus, see `corpus.DOMAINS`.
            length: Tokens of a window.
        """
        each = [_windows(domain, length) for domain in domains]
        least = min(len(tokens) for tokens in each)
        return cls(np.concatenate([tokens[:least] for tokens in each]))

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """[count, length], any windows."""
        return self.tokens[rng.integers(len(self.tokens), size=count)]


def token(text: str) -> int:
    """Number of a token; all models have the same ones."""
    number: int | None = _tokenizer().token_to_id(text)
    if number is None:
        raise UsageError(f"{text!r} is no token")
    return number


@cache
def _tokenizer() -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as why:
        raise UsageError(f"{why.name} is not installed", hint="pip install 'moexray[lab]'") from why
    return Tokenizer.from_file(str(FOLDER / "skewed" / "tokenizer.json"))


@cache
def _encoded(domain: str) -> np.ndarray:
    tokenizer = _tokenizer()
    every = json.loads((FOLDER / "prompts.json").read_text("utf-8"))
    if domain not in every:
        raise UsageError(f"no prompts of the domain {domain!r}", hint=f"one of {', '.join(every)}")
    return np.concatenate([np.array(tokenizer.encode(text).ids, np.int64) for text in every[domain]])


def _windows(domain: str, length: int) -> np.ndarray:
    tokens = _encoded(domain)
    return tokens[: len(tokens) // length * length].reshape(-1, length)
