"""JSON that often lies in a bundle and holds no records: why it is left out.

Recognised by its keys, never by the name of the file. What is told becomes the reason in `skipped`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["configuration", "own_document"]

CONFIGURATION = "configuration, no records"

# A document is of that kind when it has all keys of one set (Hugging Face, TensorRT-LLM).
KEYS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"architectures", "model_type"}), "model"),
    (frozenset({"model_type", "transformers_version"}), "model"),
    (frozenset({"architecture", "pretrained_config"}), "model"),
    (frozenset({"pretrained_config", "build_config"}), "engine"),
    (frozenset({"transformers_version", "eos_token_id"}), "generation"),
    (frozenset({"temperature", "top_p", "eos_token_id"}), "generation"),
    (frozenset({"eos_token_id", "bos_token_id"}), "generation"),
    (frozenset({"tokenizer_class"}), "tokenizer"),
    (frozenset({"added_tokens", "model", "pre_tokenizer"}), "tokenizer"),
    (frozenset({"added_tokens_decoder"}), "tokenizer"),
    (frozenset({"chat_template"}), "tokenizer"),
    (frozenset({"weight_map", "metadata"}), "index of weight files"),
    (frozenset({"quant_method"}), "quantisation"),
)
VOCABULARY = 256  # least words of a vocabulary: its bytes


def own_document(document: Any) -> str:
    """Why a document that moexray itself writes is not read; "" for any other."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith("moexray."):
        return ""
    if schema.startswith("moexray.bundle"):
        return "the bundle's manifest, needs no reading"
    if schema.startswith("moexray.run"):
        return "the manifest of a saved run; give its folder alone to read the run"
    return f"moexray's own output ({schema[:60]}), no evidence"


def configuration(document: Any) -> str:
    """Why a document of settings is left out; "" for one that is not known as such."""
    if not isinstance(document, dict) or not document:
        return ""
    keys = frozenset(str(k) for k in document)
    kind = next((kind for needed, kind in KEYS if needed <= keys), None)
    if kind is None and all(k.endswith(("_token", "_tokens")) for k in keys):
        kind = "tokenizer"
    if kind is None and _words_to_ids(document):
        kind = "vocabulary of a tokenizer"
    return f"{CONFIGURATION} ({kind})" if kind else ""


def _words_to_ids(document: dict[Any, Any]) -> bool:
    """A vocabulary: hundreds of words, each with its own id, numbered without a gap."""
    ids = document.values()
    if len(document) < VOCABULARY or not all(type(i) is int for i in ids):
        return False
    if sum(str(k).lstrip("-").isdigit() for k in document) > len(document) // 2:
        return False  # numbers to numbers: a map, no words
    return len(set(ids)) == len(document) and max(ids) - min(ids) == len(document) - 1
