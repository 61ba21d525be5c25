"""Precision policies: weights rounded to FP16, BF16 or FP8 (e4m3) layer by layer, and what that costs.

Glossary: *e4m3* is the 8-bit float of torch.float8_e4m3fn: 3 bits of fraction, largest value 448, smallest
normal value 2^-6. *Rounding error* of a value in the normal range is at most half a step, 1/17 of it;
values beyond 448 *saturate*. A *fallback* names layers that keep a wider format.

Weights are rounded and computed with in the model's own format: errors are those of the format, speed is
not. Source of the bounds: project measurement (lab), and the format itself: 2^-4 / (1 + 2^-4) = 1/17.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from moexray.core.errors import UsageError
from moexray.verify.ab.outcome import Margin, Outcome, outcome
from moexray.verify.ab.stats import paired_means, too_few

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "E4M3_LARGEST", "E4M3_ROUNDING", "FORMATS", "KEPT", "LayerError", "Policy", "PrecisionReport",
    "PrecisionSwitch", "Rounded", "next_token_loss", "precision_report", "rounded", "with_fallback",
]  # fmt: skip

Format = Literal["fp8", "fp16", "bf16", "keep"]
FORMATS = ("fp8", "fp16", "bf16", "keep")
E4M3_LARGEST = 448.0
E4M3_ROUNDING = 1 / 17
SMALLEST_NORMAL = {"fp8": 2.0**-6, "fp16": 2.0**-14, "bf16": 2.0**-126}
LARGEST = {"fp8": E4M3_LARGEST, "fp16": 65504.0, "bf16": 3.3895313892515355e38}
LOSS_MARGIN = Margin(0.01, is_share=True)  # of the loss; project assumption
# What published FP8 recipes leave alone: embeddings, output head, router (its choices are discrete).
KEPT = ("*embed*", "*lm_head*", "*router*", "*.gate.weight", "*norm*")


@dataclass(frozen=True, slots=True)
class Policy:
    """Which format the weights of each layer take.

    Args:
        default: Of every matrix that no pattern below names.
        fallback: (pattern of parameter names as of a shell, format), the first that fits counts.
        scale: What one scale of FP8 is for: "tensor", a "row" (output channel), or "none": scale 1, as a
            plain cast does it.
        kept: Patterns of what is never rounded.
    """

    default: Format = "fp8"
    fallback: tuple[tuple[str, Format], ...] = ()
    scale: Literal["tensor", "row", "none"] = "row"
    kept: tuple[str, ...] = KEPT

    def format_of(self, name: str) -> Format:
        """The format of a parameter."""
        if any(fnmatchcase(name, p) for p in self.kept):
            return "keep"
        return next((f for p, f in self.fallback if fnmatchcase(name, p)), self.default)


@dataclass(frozen=True, slots=True)
class Rounded:
    """A tensor after rounding.

    Args:
        values: In the format it came in; what is no number stays none.
        max_relative: Largest error of a value in the normal range that did not saturate, over the value.
        relative_l2: Norm of the errors of finite values over the norm of these.
        saturated: Values beyond the largest of the format, infinities among them; they were set to it.
        subnormal: Values below the smallest normal one, 0 aside: their relative error has no bound.
        count: Values.
    """

    values: Any
    max_relative: float
    relative_l2: float
    saturated: int
    subnormal: int
    count: int


@dataclass(frozen=True, slots=True)
class LayerError:
    """What rounding does to one layer.

    Args:
        layer: Name of the module.
        format: Of its matrices; several are joined by a plus.
        parameters: Values rounded.
        weight_max_relative: See Rounded; the worst matrix.
        weight_relative_l2: Over all its matrices.
        saturated: Values beyond the largest of the format.
        subnormal: Values below the smallest normal one.
        output_relative_l2: Of its output, on the input that the unrounded model gives it; None where it
            did not run.
    """

    layer: str
    format: str
    parameters: int
    weight_max_relative: float
    weight_relative_l2: float
    saturated: int
    subnormal: int
    output_relative_l2: float | None


@dataclass(frozen=True, slots=True)
class PrecisionReport:
    """What a policy does to a model on some text.

    Args:
        layers: In the order of the model.
        loss: Mean loss of the next token in nats, before and after rounding, paired by rows of text.
        logits_relative_l2: Of the model's output after rounding, mean over rows.
        top1_changed: Share of positions whose most likely next token changed.
    """

    layers: tuple[LayerError, ...]
    loss: Outcome
    logits_relative_l2: float
    top1_changed: float

    @property
    def saturated(self) -> int:
        """Values beyond the largest of their format, all layers."""
        return sum(x.saturated for x in self.layers)

    def to_json(self) -> dict[str, Any]:
        """The document `moexray.precision/1`."""
        own = {"schema": "moexray.precision/1", "saturated": self.saturated, "fp8_bound": E4M3_ROUNDING}
        return {**own, **asdict(self)}


def rounded(values: Any, form: Format, scale: str = "tensor") -> Rounded:
    """Rounds a floating tensor to a format and back.

    Args:
        values: A torch tensor.
        form: fp8, fp16, bf16; "keep" gives it back.
        scale: For fp8, see Policy.
    """
    import torch

    wide = values.detach().to(torch.float32)
    if form == "keep":
        return Rounded(values, 0.0, 0.0, 0, 0, wide.numel())
    factor = _scale(wide, scale) if form == "fp8" else torch.ones(())
    scaled = wide / factor
    size = scaled.abs()
    over = size > LARGEST[form] * (1 + 1e-6)  # the largest value over its own scale may be off by an ulp
    dtype = {"fp8": torch.float8_e4m3fn, "fp16": torch.float16, "bf16": torch.bfloat16}[form]
    # clamped first: what torch's own cast makes of larger values differs by release (448, NaN, infinity)
    short = scaled.clamp(-LARGEST[form], LARGEST[form]).to(dtype).to(torch.float32)
    error = (short - scaled).abs()
    normal = (size >= SMALLEST_NORMAL[form]) & ~over
    relative = (error[normal] / size[normal]).max() if bool(normal.any()) else torch.zeros(())
    back = short * factor
    finite = wide.isfinite()
    off, norm = (float(torch.linalg.vector_norm(x[finite], dtype=torch.float64)) for x in (back - wide, wide))
    return Rounded(
        values=back.to(values.dtype),
        max_relative=float(relative),
        relative_l2=off / norm if norm else 0.0,
        saturated=int(over.sum()),
        subnormal=int(((size > 0) & (size < SMALLEST_NORMAL[form])).sum()),
        count=wide.numel(),
    )


def _scale(wide: Any, scale: str) -> Any:
    import torch

    if scale == "none":
        return torch.ones(())
    size = wide.abs()
    size = torch.where(size.isfinite(), size, 0.0)  # one infinity must not be the scale of its row
    top = size.amax(dim=-1, keepdim=True) if scale == "row" else size.max()
    return torch.where(top > 0, top / E4M3_LARGEST, torch.ones_like(top))


def _matrices(model: Any, policy: Policy) -> Iterator[tuple[str, Any, Any, Format]]:
    """(module name, module, parameter, format) of every matrix that the policy rounds."""
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            form = policy.format_of(full)
            if _is_matrix(parameter) and form != "keep":
                if not bool(parameter.isfinite().all()):
                    raise UsageError(f"{full} holds what is no finite number", hint="check the weights")
                yield prefix, module, parameter, form


def _is_matrix(parameter: Any) -> bool:
    return bool(parameter.dim() >= 2 and parameter.is_floating_point() and parameter.numel() > 0)


def _check_patterns(model: Any, policy: Policy) -> None:
    """A fallback that names no matrix would pass for one that was tried.

    Raises:
        UsageError: a pattern fits no matrix that is not kept anyway.
    """
    names = [
        n for n, p in model.named_parameters(remove_duplicate=False)
        if _is_matrix(p) and not any(fnmatchcase(n, kept) for kept in policy.kept)
    ]  # fmt: skip
    for pattern, _ in policy.fallback:
        if not any(fnmatchcase(n, pattern) for n in names):
            some = ", ".join(names[:: max(1, len(names) // 4)][:4])
            raise UsageError(f"no matrix that is rounded fits the fallback {pattern}",
                             hint=f"patterns of names as of a shell; names are {some}, ...")  # fmt: skip


class PrecisionSwitch:
    """Switches a live model between its own weights (A) and rounded ones (B).

    Both sets stay in memory. `switch` fits `run_trial`; `restore` puts the very same tensors back.

    Args:
        model: A torch module.
        policy: Of setting B.
        base: Of setting A; the weights as they are where None.

    Raises:
        UsageError: the policies round nothing, a pattern fits nothing, or a weight is no number.
    """

    def __init__(self, model: Any, policy: Policy, base: Policy | None = None) -> None:
        self._own: list[tuple[Any, Any]] = []
        self._sets: dict[str, list[Any]] = {"A": [], "B": []}
        arms = {"A": base or Policy("keep"), "B": policy}
        found: dict[str, dict[int, tuple[Any, Format]]] = {}
        for arm, of in arms.items():
            _check_patterns(model, of)
            found[arm] = {id(p): (p, form) for _, _, p, form in _matrices(model, of)}
        for key, (parameter, _) in {**found["A"], **found["B"]}.items():
            own = parameter.data
            self._own.append((parameter, own))
            for arm, of in arms.items():
                form = found[arm][key][1] if key in found[arm] else "keep"
                self._sets[arm].append(rounded(own, form, of.scale).values)
        if not self._own:
            raise UsageError("the policy rounds no matrix of this model", hint="look at its patterns")

    def switch(self, setting: str) -> None:
        """Puts the weights of setting "A" or "B" in force."""
        for (parameter, _), values in zip(self._own, self._sets[setting], strict=True):
            parameter.data = values

    def restore(self) -> None:
        """Puts the model's own tensors back; safe twice."""
        for parameter, own in self._own:
            parameter.data = own


def precision_report(
    model: Any, policy: Policy, input_ids: Any, margin: Margin = LOSS_MARGIN
) -> PrecisionReport:
    """Errors of weights and outputs per layer, and the loss before and after.

    Args:
        model: A causal language model of transformers; it is left as it was.
        policy: Which layers take which format.
        input_ids: [rows, tokens] of text.
        margin: Change of the loss that does not matter.

    Raises:
        UsageError: the policy rounds nothing, a pattern fits nothing, a weight is no number, or there are
            fewer than two tokens a row.
    """
    import torch

    _check_patterns(model, policy)
    was_training = model.training
    model.eval()
    layers: dict[str, list[Rounded]] = {}
    modules: dict[str, tuple[Any, list[tuple[Any, Any]], set[str]]] = {}
    for prefix, module, parameter, form in _matrices(model, policy):
        done = rounded(parameter.data, form, policy.scale)
        layers.setdefault(prefix, []).append(done)
        _, swaps, forms = modules.setdefault(prefix, (module, [], set()))
        swaps.append((parameter, done.values))
        forms.add(form)
    if not layers:
        raise UsageError("the policy rounds no matrix of this model", hint="look at its patterns")
    outputs: dict[str, list[float]] = {name: [] for name in layers}
    hooks = [m.register_forward_hook(_measured(swaps, outputs[prefix]), with_kwargs=True)
             for prefix, (m, swaps, _) in modules.items()]  # fmt: skip
    live = PrecisionSwitch(model, policy)
    rows: list[tuple[float, float, float, float]] = []
    try:
        with torch.inference_mode():
            for row in input_ids.split(1):
                before = model(input_ids=row).logits.float()
                for hook in hooks:  # the first row tells the error of each layer
                    hook.remove()
                live.switch("B")
                after = model(input_ids=row).logits.float()
                live.restore()
                rows.append(_row(before, after, row))
    finally:
        for hook in hooks:
            hook.remove()
        live.restore()
        model.train(was_training)
    first, second, apart, changed = zip(*rows, strict=True)
    drawn = paired_means(first, second)
    return PrecisionReport(
        layers=tuple(_layer(p, modules[p][2], found, outputs[p]) for p, found in layers.items()),
        loss=outcome("loss", drawn, unit="nats", margin=margin, missing=too_few(len(rows), "rows of text")),
        logits_relative_l2=sum(apart) / len(apart),
        top1_changed=sum(changed) / len(changed),
    )


def _row(before: Any, after: Any, ids: Any) -> tuple[float, float, float, float]:
    return (
        next_token_loss(before, ids),
        next_token_loss(after, ids),
        float((after - before).norm() / before.norm()),
        float((after.argmax(-1) != before.argmax(-1)).float().mean()),
    )


def next_token_loss(logits: Any, input_ids: Any) -> float:
    """Mean loss of the next token in nats.

    Args:
        logits: [batch, tokens, vocabulary].
        input_ids: [batch, tokens], two tokens a row at least.
    """
    import torch

    if input_ids.shape[-1] < 2:
        raise UsageError("the loss of the next token wants two tokens a row", hint="give longer text")
    flat = logits.detach()[:, :-1].float().reshape(-1, logits.shape[-1])
    return float(torch.nn.functional.cross_entropy(flat, input_ids[:, 1:].reshape(-1)))


def _measured(swaps: Sequence[tuple[Any, Any]], found: list[float]) -> Any:
    """A hook that runs the module once more with rounded weights, on the same input."""

    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        own = [parameter.data for parameter, _ in swaps]
        try:
            for parameter, values in swaps:
                parameter.data = values
            again = module.forward(*args, **kwargs)
        finally:
            for (parameter, _), values in zip(swaps, own, strict=True):
                parameter.data = values
        first, second = (x[0] if isinstance(x, tuple) else x for x in (output, again))
        norm = float(first.float().norm())
        found.append(float((second.float() - first.float()).norm()) / norm if norm else 0.0)

    return hook


def _layer(name: str, forms: set[str], found: Iterable[Rounded], outputs: list[float]) -> LayerError:
    parts = list(found)
    count = sum(r.count for r in parts)
    # of the matrices' relative norms, weighted by their size: all of a layer are of one scale
    mean_square = sum(r.relative_l2**2 * r.count for r in parts) / count
    return LayerError(
        layer=name,
        format="+".join(sorted(forms)),
        parameters=count,
        weight_max_relative=max(r.max_relative for r in parts),
        weight_relative_l2=mean_square**0.5,
        saturated=sum(r.saturated for r in parts),
        subnormal=sum(r.subnormal for r in parts),
        output_relative_l2=max(outputs) if outputs else None,
    )


def with_fallback(policy: Policy, report: PrecisionReport, most: float, form: Format = "bf16") -> Policy:
    """The policy with a wider format for every layer whose output error passes a limit, or that saturates.

    Args:
        policy: As it was reported on.
        report: Its report.
        most: Largest relative error (L2) of a layer's output.
        form: Format of the fallback layers.
    """
    wide = [
        x.layer for x in report.layers if x.saturated or (x.output_relative_l2 or 0.0) > most
    ]
    more = tuple((f"{name}.*", form) for name in wide)
    return Policy(policy.default, (*more, *policy.fallback), policy.scale, policy.kept)
