"""`moexray lab train`: the models of the lab, made anew."""

from __future__ import annotations

from pathlib import Path

import click

from moexray.core.errors import UsageError
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say

__all__ = ["command"]

KINDS = ("skewed", "balanced")  # verify.lab.train.RECIPES, without importing it


@click.command("train")
@click.option("-o", "--output", "out", required=True, type=click.Path(file_okay=False, path_type=Path),
              help="Folder of the model; it is made.")  # fmt: skip
@click.option("--kind", type=click.Choice(KINDS), default="skewed", show_default=True,
              help="Experts that specialise by domain, or that are used alike in each.")  # fmt: skip
@click.option("--steps", type=click.IntRange(1, 100_000), help="Of training; default: as the models here.")
@click.option("--seed", type=int, help="Of weights and batches; default: as the models here.")
@click.option("--force", is_flag=True, help="Overwrite a model.")
def command(out: Path, kind: str, steps: int | None, seed: int | None, *, force: bool) -> None:
    """Train a small MoE model on the standard library of the running Python.

    One thread, some minutes; the same machine, Python and seed give the same weights. Writes weights (bf16
    safetensors), configuration and tokenizer as transformers and vLLM read them, and prompts of each domain
    that the model has not seen. Use it by `lab run --model FOLDER`.
    """
    from dataclasses import replace

    from moexray.verify.lab.train import RECIPES, train

    with refusing():
        if (out / "model.safetensors").exists() and not force:
            raise UsageError(f"{out} holds a model", hint="--force overwrites it")
        known = RECIPES[kind]
        recipe = replace(known, steps=steps or known.steps, seed=known.seed if seed is None else seed)
        loss = train(out, recipe, lambda text: say(text, err=True))
    say(f"{out}: trained, loss {loss:.2f} nats per token\nnext: moexray lab run --model {out}")
