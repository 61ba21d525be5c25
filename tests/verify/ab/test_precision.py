"""FP8, FP16 and BF16 policies: rounding within the format's bound, saturation told, the model left as it was."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from moexray.core.errors import UsageError  # noqa: E402
from moexray.verify.ab import Plan, result, run_trial, steps  # noqa: E402
from moexray.verify.ab.precision import (  # noqa: E402
    E4M3_ROUNDING,
    Policy,
    PrecisionSwitch,
    next_token_loss,
    precision_report,
    rounded,
    with_fallback,
)
from tiny_models import tiny  # noqa: E402


def _e4m3():
    """Every finite value of the format by its definition: 4 bits of exponent (bias 7), 3 of fraction."""
    out = {0.0}
    for e in range(16):
        for m in range(8):
            if (e, m) != (15, 7):  # NaN
                out.add((m / 8) * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))
    return sorted(out)


def test_fp8_rounds_to_the_nearest_value_of_the_format():
    grid = torch.tensor(_e4m3())
    assert float(grid.max()) == 448.0
    x = torch.cat([torch.rand(5000) * 448, torch.rand(5000), torch.rand(5000) * 2**-6])
    found = rounded(x, "fp8", "none").values
    nearest = (x[:, None] - grid[None]).abs().min(dim=1).values
    assert torch.equal((found - x).abs(), nearest)
    assert set(found.tolist()) <= set(_e4m3())


def test_rounding_stays_within_a_seventeenth_and_reaches_it():
    worst = torch.tensor([1 + 1 / 16])  # halfway between 1 and 1 + 1/8: half a step is 1/17 of it
    assert rounded(worst, "fp8", "none").max_relative == pytest.approx(E4M3_ROUNDING)
    torch.manual_seed(0)
    for scale in ("tensor", "row", "none"):
        found = rounded(torch.randn(512, 512), "fp8", scale)
        assert E4M3_ROUNDING * 0.99 < found.max_relative <= E4M3_ROUNDING * (1 + 1e-6)
        assert 0.024 < found.relative_l2 < 0.029
        assert found.saturated == 0


def test_saturation_is_detected_and_held_at_448():
    x = torch.tensor([[1.0, -500.0, 448.0, 1e6, 464.0]])
    plain = rounded(x, "fp8", "none")
    assert plain.saturated == 3
    assert plain.values.tolist() == [[1.0, -448.0, 448.0, 448.0, 448.0]]
    assert plain.max_relative <= E4M3_ROUNDING
    scaled = rounded(x, "fp8", "tensor")
    assert scaled.saturated == 0
    assert scaled.values[0, 3] == pytest.approx(1e6)
    assert rounded(torch.tensor([1e5]), "fp16").saturated == 1
    assert rounded(torch.tensor([1e5]), "bf16").saturated == 0


def test_small_values_are_counted_apart():
    found = rounded(torch.tensor([0.0, 1e-4, 2**-7, 1.0]), "fp8", "none")
    assert found.subnormal == 2
    assert found.max_relative == 0.0


def test_a_row_of_zeros_stays():
    found = rounded(torch.zeros(2, 3), "fp8", "row")
    assert found.values.tolist() == [[0.0] * 3] * 2
    assert found.relative_l2 == 0.0


@pytest.fixture(scope="module")
def model():
    return tiny("qwen3_moe")


@pytest.fixture(scope="module")
def ids():
    torch.manual_seed(1)
    return torch.randint(3, 64, (2, 24))


def test_a_report_names_every_layer_and_leaves_the_model_as_it_was(model, ids):
    own = {n: (p.data_ptr(), p.clone()) for n, p in model.named_parameters()}
    found = precision_report(model, Policy("fp8"), ids)
    assert {n: p.data_ptr() for n, p in model.named_parameters()} == {n: a for n, (a, _) in own.items()}
    assert all(torch.equal(p, own[n][1]) for n, p in model.named_parameters())
    names = [x.layer for x in found.layers]
    assert any("experts" in n for n in names)
    assert any("self_attn.q_proj" in n for n in names)
    assert not any("embed" in n or "lm_head" in n or n.endswith(".gate") for n in names)
    for x in found.layers:
        assert 0 < x.weight_max_relative <= E4M3_ROUNDING * (1 + 1e-6)
        assert 0.01 < x.weight_relative_l2 < 0.04
        assert 0.001 < x.output_relative_l2 < 0.1
        assert x.saturated == 0
    loss = found.loss
    assert loss.before.value == pytest.approx(next_token_loss(model(input_ids=ids).logits, ids))
    assert loss.after.value != loss.before.value
    assert loss.after.value == pytest.approx(loss.before.value, rel=0.05)
    assert (loss.pairs, loss.verdict) == (2, "cannot tell")
    assert 0 < found.logits_relative_l2 < 0.5
    assert 0 <= found.top1_changed < 0.5


def test_the_loss_is_paired_by_rows_of_text(model):
    torch.manual_seed(2)
    found = precision_report(model, Policy("fp16"), torch.randint(3, 64, (8, 24)))
    loss = found.loss
    assert loss.pairs == 8
    # rows differ by far more than the rounding does, and that falls out
    assert loss.difference.high - loss.difference.low < 0.2 * (loss.before.high - loss.before.low)


def test_wider_formats_cost_less(model, ids):
    errors = [
        max(x.output_relative_l2 for x in precision_report(model, Policy(f), ids).layers)
        for f in ("fp16", "bf16", "fp8")
    ]
    assert errors == sorted(errors)
    assert errors[0] < errors[2] / 50


def test_saturating_layers_fall_back(ids):
    model = tiny("qwen3_moe")
    weight = model.model.layers[0].self_attn.q_proj.weight
    with torch.no_grad():
        weight[0, 0] = 1000.0
    plain = Policy("fp8", scale="none")
    found = precision_report(model, plain, ids)
    assert found.saturated == 1
    [layer] = [x for x in found.layers if x.saturated]
    assert layer.layer.endswith("layers.0.self_attn.q_proj")
    safe = with_fallback(plain, found, most=1.0)
    assert safe.format_of(f"{layer.layer}.weight") == "bf16"
    assert precision_report(model, safe, ids).saturated == 0


def test_patterns_decide_in_their_order():
    policy = Policy("fp8", (("*layers.0.*", "bf16"), ("*layers.*", "fp16")))
    assert policy.format_of("model.layers.0.mlp.experts.down_proj") == "bf16"
    assert policy.format_of("model.layers.1.mlp.experts.down_proj") == "fp16"
    assert policy.format_of("model.other.weight") == "fp8"
    assert policy.format_of("model.layers.0.mlp.gate.weight") == "keep"
    with pytest.raises(UsageError, match="rounds no matrix"):
        PrecisionSwitch(torch.nn.Linear(4, 4), Policy("keep"))


def test_two_precisions_are_the_arms_of_a_trial(model, ids):
    live = PrecisionSwitch(model, Policy("fp8"))
    seen = []

    def step():
        with torch.inference_mode():
            seen.append(next_token_loss(model(input_ids=ids).logits, ids))

    sample = steps(step, 2, warm=1, gauges=lambda: [("loss_nats", seen[-1])])
    trial = run_trial(live.switch, sample, Plan(quads=6, noisy="mark", control_every=0))
    [loss] = [o for o in result(trial).outcomes if o.figure == "loss_nats"]
    assert loss.pairs == 12
    assert loss.difference.value != 0
    assert not math.isnan(loss.ratio.value)
    live.restore()
    assert next_token_loss(model(input_ids=ids).logits, ids) == pytest.approx(loss.before.value, abs=1e-5)


@pytest.mark.parametrize("scale", ["row", "tensor", "none"])
@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_one_value_that_is_no_number_spoils_no_other(scale, odd):
    x = torch.tensor([[1.0, 2.0, odd], [1.0, 2.0, 3.0]])
    found = rounded(x, "fp8", scale)
    sound = found.values[:, :2]
    assert float((sound - x[:, :2]).abs().max()) <= 2 * E4M3_ROUNDING
    assert found.relative_l2 < 0.06
    assert found.saturated == int(math.isinf(odd))
    assert bool(found.values[0, 2].isnan()) == math.isnan(odd)


def test_the_norms_of_tiny_and_of_huge_values():
    for x in (torch.tensor([[3e38, 1e38, 2e38]]), torch.tensor([[1.1e-30, 3.3e-30, 7e-30]])):
        assert 0 < rounded(x, "fp8", "row").relative_l2 < 0.06


def test_a_model_with_weights_that_are_no_numbers_is_refused():
    model = tiny("qwen3_moe")
    name, weight = next((n, p) for n, p in model.named_parameters() if n.endswith("q_proj.weight"))
    weight.data[0, 0] = math.inf
    for make in (lambda: PrecisionSwitch(model, Policy()), lambda: precision_report(model, Policy(), torch.zeros(1, 8).long())):
        with pytest.raises(UsageError, match=name):
            make()


@pytest.mark.parametrize("pattern", ["nosuch*", "*norm*", "*embed*"])
def test_a_fallback_that_fits_no_rounded_matrix_is_refused(pattern):
    model, policy = tiny("qwen3_moe"), Policy("fp8", ((pattern, "bf16"),))
    for make in (lambda: PrecisionSwitch(model, policy), lambda: PrecisionSwitch(model, Policy(), policy),
                 lambda: precision_report(model, policy, torch.zeros(1, 8).long())):  # fmt: skip
        with pytest.raises(UsageError, match="no matrix that is rounded fits"):
            make()


def test_both_arms_follow_their_own_policy():
    model = tiny("qwen3_moe")
    own = {n: p.data.clone() for n, p in model.named_parameters()}
    a, b = Policy("fp16", (("*q_proj*", "keep"),)), Policy("keep", (("*q_proj*", "bf16"), ("*k_proj*", "fp8")))
    switch = PrecisionSwitch(model, b, a)
    for setting, policy in (("A", a), ("B", b)):
        switch.switch(setting)
        for name, p in model.named_parameters():
            form = policy.format_of(name) if p.dim() >= 2 else "keep"
            assert torch.equal(p.data, rounded(own[name], form, policy.scale).values), (setting, name)
    switch.restore()
    assert all(torch.equal(p.data, own[n]) for n, p in model.named_parameters())
