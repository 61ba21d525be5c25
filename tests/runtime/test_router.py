"""Policies over the routers of real model classes: bitwise the original when plain, off, failed or detached."""

import copy
import io
import threading
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import moexray  # noqa: E402
from moexray.algorithms import routers  # noqa: E402
from moexray.core.errors import UsageError  # noqa: E402
from moexray.runtime import guard as guards  # noqa: E402
from moexray.runtime.engines import routers as read_routers  # noqa: E402
from moexray.runtime.guard import switch  # noqa: E402
from moexray.runtime.router import attach  # noqa: E402
from tiny_models import WITH_RULE, tiny, tokens  # noqa: E402


class Forced(NamedTuple):
    """As torch.topk answers."""

    values: object
    indices: object


STRONG = "salted:salt=1e5"  # noise of one logit: many choices change
POLICIES = (STRONG, "salted:ties_only=true", "temperature:value=3", "soft-mask:cap=0.5", "bias:rate=0.5",
            "capacity:factor=0.5", "capacity:mode=spill,factor=1", "capacity:mode=reroute,factor=1",
            "sticky:margin=0.5")  # fmt: skip


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(guards, "_said", set())
    monkeypatch.setattr(guards, "_off", set())
    monkeypatch.delenv(guards.VARIABLE, raising=False)


def run(model, batch=None):
    with torch.inference_mode():
        return model(tokens() if batch is None else batch).logits


def seen(model, policy):
    """What the first router returned under a policy: (logits, weights, ids) before and after, and its arguments."""
    rows, router = {}, read_routers(model)[0]
    module = router.module
    first = module.register_forward_hook(
        lambda m, args, out: rows.update(before=(router.read(out), [a.clone() for a in args]))
    )
    with attach(model, policy) as handle:
        assert handle.reason == ""
        last = module.register_forward_hook(lambda m, args, out: rows.update(after=router.read(out)))
        run(model)
        assert handle.guard.figures().fallbacks == 0, handle.guard.figures().error
        first.remove()
        last.remove()
        effect = next(e for e in handle.effects() if e.path == router.path)
        return rows["before"][0], rows["after"], rows["before"][1], router, effect


def forced(monkeypatch, router, args, ids):
    """The module's own code, with top-k over experts made to choose these ids: its rule for weights."""
    plain = torch.topk

    def topk(values, k, dim=-1, **options):
        if values.shape[-1] == router.experts and k == router.k:
            return Forced(values.gather(-1, ids), ids)
        return plain(values, k, dim=dim, **options)

    with torch.inference_mode():
        with monkeypatch.context() as patch:
            patch.setattr(torch, "topk", topk)
            patch.setattr(torch.Tensor, "topk", topk)
            out = router.module.forward(*args)
        return router.read(out)


@pytest.mark.parametrize("name", WITH_RULE)
def test_plain_and_detached_are_bitwise_the_original(name):
    model = tiny(name)
    before, hooks = run(model), [len(m._forward_hooks) for m in model.modules()]
    with attach(model, "plain") as handle:
        assert handle.attached, handle.reason
        assert torch.equal(run(model), before)
        assert handle.guard.figures().calls > 0
    with attach(model, STRONG) as handle:
        assert not torch.equal(run(model), before)
        assert sum(effect.flips for effect in handle.effects()) > 0
    assert torch.equal(run(model), before)
    handle.detach()
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    assert len(model._forward_pre_hooks) == 0


@pytest.mark.parametrize("name", WITH_RULE)
def test_weights_are_those_of_the_models_own_rule(monkeypatch, name):
    _, after, args, router, effect = seen(tiny(name), STRONG)
    assert effect.flips > 0
    _, weights, ids = forced(monkeypatch, router, args, after[2])
    assert torch.equal(ids, after[2])
    assert torch.equal(weights, after[1])


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "glm4_moe"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_acts_inside_the_groups_that_the_model_allows(name, policy):
    before, after, _, router, _ = seen(tiny(name), policy)
    logits, ids, paid = before[0], after[2].numpy(), after[1].numpy() > 0
    assert paid.any()
    if policy.startswith("soft-mask"):  # marks of cut scores tie: which groups is open, how many is not
        assert all(len(set(row // 4)) <= 2 for row in ids)
        return
    scores = logits if name == "deepseek_v2" else logits.sigmoid() + router.module.e_score_correction_bias
    open_ = routers.grouped(scores.numpy(), 4, 4, 2, best=1 if name == "deepseek_v2" else 2)
    assert np.isfinite(np.take_along_axis(open_, ids, axis=1))[paid].all()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_choice_is_that_of_numpy_on_the_models_logits(policy):
    before, after, *_ = seen(tiny("olmoe"), policy)
    name, _, rest = policy.partition(":")
    options = dict(part.split("=") for part in rest.split(",") if part)
    typed = {k: v == "true" or (v if k == "mode" else float(v)) for k, v in options.items()}
    function = {"soft-mask": routers.soft_mask, "bias": routers.biased}.get(name) or getattr(routers, name)
    if name == "sticky":  # one forward: nothing is held yet
        function, typed = routers.plain, {}
    expected = function(before[0].numpy(), 2, **typed)
    paid = after[1].numpy() > 0
    assert (paid == (expected.ids >= 0)).all()
    np.testing.assert_array_equal(after[2].numpy()[paid], expected.ids[paid])


def test_a_dropped_choice_has_no_weight_and_the_others_are_not_raised(monkeypatch):
    _, after, args, router, effect = seen(tiny("mixtral"), "capacity:factor=0.5")
    lost = after[1] == 0
    assert int(lost.sum()) == effect.lost > 0
    _, weights, _ = forced(monkeypatch, router, args, after[2])
    assert torch.equal(after[1], weights.masked_fill(lost, 0.0))


def test_temperature_changes_weights_only():
    before, after, _, _, effect = seen(tiny("mixtral"), "temperature:value=3")
    assert torch.equal(before[2], after[2])
    assert effect.flips == 0
    assert (after[1].max(dim=1).values < before[1].max(dim=1).values).all()


def test_a_batch_id_fixes_the_choices():
    model = tiny("qwen3_moe")
    with attach(model, STRONG) as handle:
        handle.next_batch(7)
        seventh, eighth = run(model), run(model)
        handle.next_batch(7)
        assert torch.equal(run(model), seventh)
        assert torch.equal(run(model), eighth)
        assert not torch.equal(seventh, eighth)
        handle.next_batch(0)
        zeroth = run(model)
    with attach(model, STRONG) as handle:  # forwards count from 0
        assert torch.equal(run(model), zeroth)
    with attach(model, f"{STRONG},seed=1"):
        assert not torch.equal(run(model), zeroth)


def test_handles_on_one_model_come_off_in_any_order():
    model = tiny("mixtral")
    before = run(model)
    for order in ((0, 1), (1, 0)):
        handles = [attach(model, "temperature:value=3"), attach(model, STRONG)]
        handles[order[0]].detach()
        assert not torch.equal(run(model), before)
        handles[order[1]].detach()
        assert torch.equal(run(model), before)


def test_the_kill_switch_gives_the_original(monkeypatch):
    model = tiny("mixtral")
    before = run(model)
    with attach(model, STRONG) as handle:
        switch("router", on=False)
        assert torch.equal(run(model), before)
        assert handle.guard.figures().skipped == 2
        switch("router", on=True)
        assert not torch.equal(run(model), before)
    monkeypatch.setenv(guards.VARIABLE, "router")
    with attach(model, STRONG):
        assert torch.equal(run(model), before)


def test_a_policy_that_raises_in_an_engine_thread(caplog):
    model = tiny("mixtral")
    before, results = run(model), []
    with attach(model, STRONG) as handle:
        for site in handle._sites:
            site.policy.choose = lambda *_: 1 // 0
        threads = [threading.Thread(target=lambda: results.append(run(model))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        figures = handle.guard.figures()
    assert len(results) == 2
    assert all(torch.equal(out, before) for out in results)
    assert (figures.calls, figures.fallbacks, figures.error) == (4, 4, "ZeroDivisionError: integer division or modulo by zero")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("part", ["weights", "write"])
def test_choices_that_came_to_nothing_are_not_counted(monkeypatch, part):
    model = tiny("mixtral")
    before = run(model)
    with attach(model, STRONG) as handle:
        monkeypatch.setattr(type(handle._sites[0].router), part, lambda *_: 1 // 0)
        assert torch.equal(run(model), before)
        assert handle.guard.figures().fallbacks == 2
        assert [(e.choices, e.flips, e.lost) for e in handle.effects()] == [(0, 0, 0)] * 2


def test_a_batch_that_raises_is_a_fallback_and_none_is_counted_while_switched_off(monkeypatch):
    model = tiny("mixtral")
    with attach(model, STRONG) as handle:
        [batch] = handle._batches.values()
        zeroth = run(model)
        switch("router", on=False)
        run(model)
        assert batch.id.item() == 0
        switch("router", on=True)
        with monkeypatch.context() as patch:
            patch.setattr(type(batch), "advance", lambda _: 1 // 0)
            assert torch.equal(run(model), zeroth)  # the batch id stands
            switch("router", on=False)
            run(model)
        assert handle.guard.figures().fallbacks == 1


def test_a_wrong_policy_is_the_callers_error_and_changes_nothing():
    model = tiny("mixtral")
    with pytest.raises(UsageError, match="no policy 'salty'"):
        attach(model, "salty")
    assert all(not m._forward_hooks for m in model.modules())


def test_sticky_holds_experts_from_forward_to_forward():
    model = tiny("mixtral")
    with attach(model, "sticky:margin=1e9"), torch.inference_mode():
        ids = []
        module = model.model.layers[0].mlp.gate
        module.register_forward_hook(lambda m, args, out: ids.append(out[2].sort(dim=1).values))
        for token in (5, 9):
            model(torch.tensor([[token], [token + 1]]))
    assert torch.equal(*ids)


def test_a_rank_without_tokens_and_a_router_of_one_expert_go_through():
    for policy in ("plain", *POLICIES):
        model = tiny("qwen3_moe")
        module = read_routers(model)[0].module
        with attach(model, policy) as handle, torch.inference_mode():
            assert [tuple(t.shape) for t in module(torch.empty(0, 32))] == [(0, 8), (0, 2), (0, 2)]
            assert handle.guard.figures().fallbacks == 0, handle.guard.figures().error
        one = tiny("qwen3_moe", num_experts=1, num_experts_per_tok=1)
        with attach(one, policy) as handle:
            run(one)
            assert handle.attached
            assert handle.guard.figures().fallbacks == 0, handle.guard.figures().error


@pytest.mark.parametrize("name", WITH_RULE)
def test_the_rule_is_the_models_under_autocast_too(name):
    """Weights for the model's own choice are its weights, bit for bit: sigmoids are then taken in bfloat16."""
    model = tiny(name)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        same = []
        for router in read_routers(model):

            def compare(_module, _args, out, router=router):
                logits, weights, ids = router.read(out)
                same.append(torch.equal(router.weights(logits, ids, weights), weights))

            router.module.register_forward_hook(compare)
        run(model)
    assert same
    assert all(same)


@pytest.mark.parametrize("copied", ["deepcopy", "pickle"])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_copy_of_the_model_is_without_the_policy_and_the_recording(copied, is_recorded, tmp_path):
    model = tiny("qwen3_moe")
    before = run(model)
    recording = moexray.attach(model, folder=tmp_path / "rings") if is_recorded else nullcontext()
    with recording, attach(model, STRONG) as handle:
        if copied == "deepcopy":
            other = copy.deepcopy(model)
        else:
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            other = torch.load(file, weights_only=False)
        assert torch.equal(run(other), before)
        assert handle.guard.figures().calls == 0
        if is_recorded:
            assert recording.reason == ""
            assert recording.ring._n == 0
        assert not torch.equal(run(model), before)
    assert torch.equal(run(model), before)
