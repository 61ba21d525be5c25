"""`moexray precision`: what FP8, FP16 or BF16 weights do to a model, layer by layer, and to its loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.core.json_text import json_text
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say

if TYPE_CHECKING:
    from moexray.verify.ab.precision import Policy

__all__ = ["command"]

SHOWN = 12  # layers in the text
MOST_CHARACTERS = 1 << 20


@click.command("precision")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--text", "text_file", required=True, type=click.Path(dir_okay=False, path_type=Path),
              help="Text of your own kind; the loss is measured on it.")
@click.option("--format-of", "default", type=click.Choice(["fp8", "fp16", "bf16"]), default="fp8",
              show_default=True, help="Format of every matrix that no fallback names.")
@click.option("--fallback", multiple=True, metavar="PATTERN=FORMAT",
              help="Layers that keep a wider format, e.g. '*layers.0.*=bf16'; the first that fits counts.")
@click.option("--scale", type=click.Choice(["row", "tensor", "none"]), default="row", show_default=True,
              help="What one FP8 scale is for; none is a plain cast.")
@click.option("--most", type=click.FloatRange(0, 1), default=0.05, show_default=True,
              help="Output error of a layer from which a fallback is proposed.")
@click.option("--rows", type=click.IntRange(1, 1000), default=16, show_default=True, help="Rows of text.")
@click.option("--tokens", type=click.IntRange(2, 100_000), default=256, show_default=True,
              help="Tokens of a row.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(model: Path, form: str, **options: Any) -> None:
    """Round the weights of MODEL (a folder of transformers, safetensors) and say what it costs.

    Per layer: error of the weights and of the output on the same input; values that saturate. For the
    model: loss of the next token before and after, paired by rows of text. Embeddings, output head, norms
    and routers keep their format. Errors are those of the format; speed is not simulated.

    Exit code: 0 measured, 2 bad usage or a model or text that cannot be read.
    """
    with refusing():
        document = _document(model, options)
    say(json_text(document) if form == "json" else _text(document, options["most"]))


def _document(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    from moexray.verify.ab.precision import precision_report, with_fallback

    policy = _policy(options)
    model, ids = _load(folder, options)
    report = precision_report(model, policy, ids)
    wider = with_fallback(policy, report, options["most"])
    more = wider.fallback[: len(wider.fallback) - len(policy.fallback)]
    return {**report.to_json(), "proposed_fallback": [f"{p}={f}" for p, f in more]}


def _policy(options: dict[str, Any]) -> Policy:
    from moexray.verify.ab.precision import FORMATS, Policy

    pairs = []
    for text in options["fallback"]:
        pattern, _, form = text.rpartition("=")
        if not pattern or form not in FORMATS:
            hint = f"PATTERN=one of {', '.join(FORMATS)}"
            raise UsageError(f"--fallback {text} names no format", hint=hint)
        pairs.append((pattern, form))
    return Policy(options["default"], tuple(pairs), options["scale"])


def _load(folder: Path, options: dict[str, Any]) -> tuple[Any, Any]:
    """Model and token ids; nothing is downloaded, no code of the model's folder is run.

    Raises:
        UsageError: torch or transformers are missing, or the model or the text cannot be read.
    """
    try:
        import torch
        import transformers
    except ImportError as why:
        raise UsageError(f"{why.name} is not installed", hint="pip install 'moexray[lab]'") from why
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder", hint="a folder with config.json and *.safetensors")
    known = {"local_files_only": True, "trust_remote_code": False}
    try:
        text = options["text_file"].read_text(encoding="utf-8", errors="replace")[:MOST_CHARACTERS]
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **known)
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder, use_safetensors=True, output_loading_info=True, **known
        )
    except Exception as why:  # a damaged folder raises whatever the code that met it raises
        what = (str(why).splitlines() or [type(why).__name__])[0][:300]
        raise UsageError(f"the model or the text cannot be read ({what})", where=str(folder),
                         hint="a folder with config.json, tokenizer and *.safetensors") from why  # fmt: skip
    if lacking := sorted(told["missing_keys"]):  # they would be random numbers
        raise UsageError(f"the files lack {len(lacking)} weights of the model, {lacking[0]} among them",
                         where=str(folder), hint="give all of its *.safetensors")  # fmt: skip
    ids = tokenizer(text, return_tensors="pt", truncation=False, verbose=False)["input_ids"][0]
    rows = min(options["rows"], len(ids) // options["tokens"])
    if rows < 1:
        raise UsageError(f"the text has {len(ids)} tokens, a row wants {options['tokens']}",
                         where=str(options["text_file"]), hint="longer text, or --tokens")  # fmt: skip
    return model.to(torch.float32), ids[: rows * options["tokens"]].reshape(rows, -1)


def _text(d: dict[str, Any], most: float) -> str:
    from moexray.faces.cli.ab_text import span

    loss = d["loss"]
    sides = (span(loss[k], "") for k in ("before", "after"))
    change = span(loss["difference"], "", signed=True)
    titles = ("weights L2", "worst", "output L2", "saturated", "subnormal")
    out = [
        f"loss of the next token: {' -> '.join(sides)} nats, {change}: {_said(loss)} ({loss['pairs']} rows)",
        f"output: {d['logits_relative_l2']:.2%} error (L2); likeliest token changed: {d['top1_changed']:.2%}",
        "",
        f"{'layer':<44}{'format':>7}" + "".join(f"{t:>12}" for t in titles),
    ]
    layers = sorted(d["layers"], key=lambda x: (-x["saturated"], -(x["output_relative_l2"] or 0.0)))
    out += [_row(x) for x in layers[:SHOWN]]
    if len(layers) > SHOWN:
        out.append(f"({SHOWN} worst of {len(layers)} layers; --format json has all)")
    if d["saturated"]:
        out.append(f"{d['saturated']:,} values saturate (FP8 ends at 448, FP16 at 65,504); --scale row helps")
    if d["proposed_fallback"]:
        out += ["", f"output error above {most:.3g}, or saturated; to keep these layers wider:",
                *(f"  --fallback '{x}'" for x in d["proposed_fallback"])]  # fmt: skip
    worst = f"worst: largest error of a value in the normal range; FP8 (e4m3) is within {d['fp8_bound']:.2%}"
    return "\n".join([*out, "", worst])


def _said(loss: dict[str, Any]) -> str:
    return loss["verdict"] if loss["verdict"] != "cannot tell" else f"cannot tell: {loss['reason']}"


def _row(x: dict[str, Any]) -> str:
    output = "-" if x["output_relative_l2"] is None else f"{x['output_relative_l2']:.2%}"
    cells = (f"{x['weight_relative_l2']:.2%}", f"{x['weight_max_relative']:.2%}", output,
             f"{x['saturated']:,}", f"{x['subnormal']:,}")  # fmt: skip
    return f"{x['layer'][-43:]:<44}{x['format']:>7}" + "".join(f"{c:>12}" for c in cells)
