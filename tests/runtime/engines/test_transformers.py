"""The table of router families against the models themselves; what is not known is left alone."""

import re
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from moexray.core.errors import UsageError  # noqa: E402
from moexray.runtime import guard as guards  # noqa: E402
from moexray.runtime.engines.transformers import FAMILIES, layer_of, routers  # noqa: E402
from moexray.runtime.router import attach  # noqa: E402
from tiny_models import MODELS, WITH_RULE, tiny, tokens  # noqa: E402


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(guards, "_said", set())


def refused(model, caplog):
    """Why no policy was attached; nothing was changed, and it was said once."""
    for _ in range(2):
        handle = attach(model, "salted")
        assert not handle.attached
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert [handle.reason in r.message for r in caplog.records] == [True]
    with handle:  # still nothing
        assert not handle.attached
    return handle.reason


@pytest.mark.parametrize("name", WITH_RULE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rule_of_a_family_gives_the_models_own_weights_and_choice(name, dtype):
    model, rows = tiny(name, dtype=dtype), []
    found = routers(model)
    for router in found:
        router.module.register_forward_hook(lambda m, args, out, router=router: rows.append((router, out)))
    with torch.inference_mode():
        model(tokens())
    assert {r.path for r, _ in rows} == {r.path for r in found} != set()
    for router, out in rows:
        with torch.no_grad():
            logits, weights, ids = router.read(out)
            scores = router.scores(logits)
            assert (logits.shape[1], ids.shape[1]) == (router.experts, router.k)
            assert torch.equal(router.weights(logits, ids, weights), weights)
            # as sets; in bf16 two logits may be equal, so their values are compared
            assert torch.equal(scores.gather(1, ids).sort(dim=1).values, scores.topk(router.k, dim=1).values.flip(1))
            written = router.write(out, weights, ids)
            assert len(written) == len(out)
            assert all(torch.equal(a, b) for a, b in zip(router.read(written), (logits, weights, ids), strict=True))


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "glm4_moe"])
def test_group_limited_routing_is_no_top_k_of_the_logits(name):
    """The models here are ones where it matters: plain top-k over all experts would be wrong."""
    model, outs = tiny(name), []
    [router] = routers(model)
    router.module.register_forward_hook(lambda m, args, out: outs.append(out))
    with torch.inference_mode():
        model(tokens())
    logits, _, ids = outs[0]
    assert not torch.equal(logits.topk(router.k, dim=1).indices.sort(dim=1).values, ids.sort(dim=1).values)


def test_layers_are_numbered_by_the_path():
    assert [r.layer for r in routers(tiny("mixtral"))] == [0, 1]
    assert [r.layer for r in routers(tiny("deepseek_v3"))] == [1]  # the first layer is dense
    assert layer_of("model.language_model.layers.12.feed_forward.router") == 12
    assert layer_of("transformer.h.3.moe.gate") == 3
    assert layer_of("gate") is None


@pytest.mark.parametrize(
    ("name", "why"),
    [("phimoe", "one expert after another"), ("deepseek_v4", "a token's id names its experts")],
)
def test_a_family_without_a_rule_is_refused_with_the_reason(name, why, caplog):
    reason = refused(tiny(name), caplog)
    assert why in reason
    assert "nothing was changed" in reason
    assert "DeepSeek V2" in reason


def test_a_release_that_was_not_tested_is_left_alone(monkeypatch, caplog):
    model = tiny("mixtral")
    # not `transformers`: it puts another object there while it loads
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "6.0.0")
    assert "transformers 6.0.0" in refused(model, caplog)


READ = [name for name in MODELS if name != "deepseek_v2_greedy"]


def seen(model):
    """The routers of a model, what they returned in one forward, and the model's own outputs."""
    found, rows = routers(model, to_write=False), []
    hooks = [r.module.register_forward_hook(lambda m, args, out, r=r: rows.append((r, r.read(out)))) for r in found]
    with torch.inference_mode():
        out = model(tokens(), output_router_logits=True, use_cache=False)
    for hook in hooks:
        hook.remove()
    return found, rows, out


def test_there_are_at_least_twenty_one_families():
    assert len({MODELS[name][0] for name in READ}) >= 21


@pytest.mark.parametrize("name", READ)
def test_captured_logits_are_the_models_own(name):
    model = tiny(name)
    _, rows, out = seen(model)
    own = out.router_logits
    if name == "deepseek_v4":  # it does not report the layers whose experts a token's id names
        rows = [(r, read) for r, read in rows if type(r.module).__name__ != "DeepseekV4HashRouter"]
    assert len(rows) == len(own) > 0
    for (router, (logits, weights, ids)), theirs in zip(rows, own, strict=True):
        assert torch.equal(logits, theirs.reshape(logits.shape)), router.path
        assert logits.shape == (24, router.experts)
        assert ids.shape == weights.shape == (24, router.k)


@pytest.mark.parametrize("name", READ)
def test_captured_ids_and_weights_are_those_that_the_experts_get(name):
    """Independent of what the router returns: the arguments of the experts' own module, or what it counts."""
    model, given = tiny(name), []
    found = routers(model, to_write=False)
    hooks = [
        r.block.get_submodule(child).register_forward_pre_hook(lambda m, args, r=r: given.append((r.path, args)))
        for r in found
        for child in (["input_linear"] if name == "jetmoe" else ["experts"])
    ]
    _, rows, _ = seen(model)
    for hook in hooks:
        hook.remove()
    assert len(given) == len(rows)
    for (router, (_, weights, ids)), (path, args) in zip(rows, given, strict=True):
        assert router.path == path
        if name == "jetmoe":  # rows sorted by expert, and how many each gets
            assert ids.flatten().bincount(minlength=router.experts).tolist() == args[1]
        elif name == "llama4":  # every expert gets every row, times its score
            scaled = args[0].view(router.experts, len(ids), -1)
            alive = (scaled != 0).any(dim=2).T
            assert torch.equal(alive.nonzero()[:, 1].view(ids.shape), ids.sort(dim=1).values)
        else:
            wanted = {"ids": ids, "weights": weights}
            assert any(a is not None and a.shape == ids.shape and torch.equal(a, wanted["ids"]) for a in args[1:])
            assert any(a is not None and a.shape == ids.shape and torch.equal(a, wanted["weights"]) for a in args[1:])


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_the_golden_trap_two_groups_of_which_one_is_open(name):
    """Ids computed from the logits would be wrong in every MoE layer; those captured are the router's."""
    model = tiny(name, n_group=2, topk_group=1, num_hidden_layers=4, num_experts_per_tok=4)
    _, rows, _ = seen(model)
    assert [r.layer for r, _ in rows] == [1, 2, 3]
    for _, (logits, _, ids) in rows:
        assert not torch.equal(logits.topk(4, dim=1).indices.sort(dim=1).values, ids.sort(dim=1).values)
        groups = ids // 8
        assert (groups == groups[:, :1]).all()  # 16 experts in two groups: all of a row lie in one


def test_a_router_that_somebody_changed_is_left_alone(monkeypatch, caplog):
    model = tiny("mixtral")
    gate = model.model.layers[1].mlp.gate
    own = gate.forward

    def other_weights(hidden):
        logits, weights, ids = own(hidden)
        return logits, weights * 2, ids

    def other_choice(hidden):
        logits, weights, ids = own(-hidden)
        return -logits, weights, ids

    monkeypatch.setattr(gate, "forward", other_weights)
    reason = refused(model, caplog)
    assert reason.startswith("model.layers.1.mlp.gate: MixtralTopKRouter: its weights follow another rule")
    monkeypatch.setattr(gate, "forward", other_choice)
    with pytest.raises(UsageError, match="another rule"):
        routers(model)


def test_a_router_that_raises_on_our_rows_is_left_alone(monkeypatch, caplog):
    model = tiny("mixtral")
    monkeypatch.setattr(model.model.layers[0].mlp.gate, "forward", lambda hidden: hidden.missing)
    assert "AttributeError" in refused(model, caplog)


def test_a_namesake_from_elsewhere_is_not_known(caplog):
    model = tiny("mixtral")
    gate = model.model.layers[0].mlp.gate
    gate.__class__ = type("MixtralTopKRouter", (type(gate),), {"__module__": "custom_code"})
    assert "this class is not known" in refused(model, caplog)


def test_models_without_routers_and_of_no_engine(caplog):
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    assert "no MoE router" in refused(transformers.LlamaForCausalLM(config), caplog)
    caplog.clear()
    assert "known engines: transformers, vllm" in refused(torch.nn.Linear(2, 2), caplog)


def test_vllm_is_refused_as_not_tested(caplog):
    model = type("MixtralForCausalLM", (torch.nn.Module,), {"__module__": "vllm.model_executor.models.mixtral"})()
    assert "not tested in vLLM" in refused(model, caplog)


def test_looking_leaves_the_hosts_random_numbers_alone():
    model = tiny("mixtral")
    before = torch.get_rng_state()
    routers(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_each_family_has_a_model_and_each_line_a_claim():
    classes = {type(m).__name__ for name in MODELS for m in tiny(name).modules()}
    for family in FAMILIES:
        assert bool(family.rule) != bool(family.why), family.name
        assert any(re.fullmatch(family.routers, c) for c in classes)
