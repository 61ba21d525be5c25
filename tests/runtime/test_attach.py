"""A recording of real model classes: the records are what the routers chose, and the model never notices."""

import threading
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import moexray  # noqa: E402
from moexray.live.drain import ROUTER, STEP, RingReader  # noqa: E402
from moexray.runtime import guard as guards  # noqa: E402
from moexray.runtime.attach import attach  # noqa: E402
from moexray.runtime.engines.transformers import routers  # noqa: E402
from moexray.runtime.guard import switch  # noqa: E402
from recorded import counted, folder, hooks, run  # noqa: E402, F401
from tiny_models import MODELS, tiny, tokens  # noqa: E402

FAMILIES = [name for name in MODELS if name != "deepseek_v2_greedy"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("by_kernels", [False, True])
def test_outputs_are_bitwise_the_same_counts_are_the_routers_and_detaching_restores_all(name, by_kernels):
    model = tiny(name)
    batches = [tokens(), tokens().flip(1), (tokens() * 7 + 3) % 61 + 3]
    before, own, bare = [run(model, b) for b in batches], [counted(model, b) for b in batches], hooks(model)
    recording = attach(model, by_kernels=by_kernels)
    assert recording.reason == ""
    for batch, output in zip(batches, before, strict=True):
        assert torch.equal(run(model, batch), output)
    recording.detach()
    assert hooks(model) == bare
    assert torch.equal(run(model), before[0])
    reader = RingReader(recording.ring.path)
    assert (reader.totals() == sum(own)).all()
    assert (reader.tokens() == 3 * 24).all()
    batch = reader.read()
    sites = len(own[0])
    router = batch.records["kind"] == ROUTER
    assert batch.records["step"].tolist() == [s for s in range(3) for _ in range(sites + 1)]
    for step in range(3):
        rows = router & (batch.records["step"] == step)
        assert sorted(batch.records["site"][rows]) == list(range(sites))
        assert (batch.counts[rows][np.argsort(batch.records["site"][rows])] == own[step]).all()
    assert (batch.records["layer"][router] == [reader.meta.sites[s].layer for s in batch.records["site"][router]]).all()
    steps = batch.records[~router]
    assert (steps["rows"] == 24).all()
    for step, row in enumerate(steps):
        inner = batch.records[router & (batch.records["step"] == step)]
        assert (inner["t0_ns"] <= inner["t1_ns"]).all()
        assert row["t0_ns"] <= inner["t0_ns"].min() <= inner["t1_ns"].max() <= row["t1_ns"]
    live = reader.live()
    assert (live["steps"], live["failures"], live["closed"]) == (3, 0, 1)
    assert min(live["own_ns"], live["step_ns"]) > 0


def test_it_is_called_moexray_attach_and_says_what_it_watches():
    model = tiny("deepseek_v3")
    with moexray.attach(model, ids=6) as recording:
        run(model)
        reader = RingReader(recording.ring.path)
        assert (reader.meta.engine, reader.meta.version, reader.meta.model) == ("transformers", "5.24.0", "DeepseekV3ForCausalLM")
        assert [(s.path, s.layer, s.experts, s.k) for s in reader.meta.sites] == [("model.layers.1.mlp.gate", 1, 16, 4)]
        batch = reader.read()
        found = []
        model.model.layers[1].mlp.gate.register_forward_hook(lambda m, args, out: found.append(out[2]))
        run(model)
        assert batch.ids[0].tolist() == found[0].flatten()[:6].tolist()


def test_attaching_and_detaching_are_safe_twice_and_again():
    model = tiny("mixtral")
    bare = hooks(model)
    recording = attach(model)
    once = hooks(model)
    assert hooks(recording.attach()._model) == once
    first = recording.ring
    recording.detach()
    recording.detach()
    assert hooks(model) == bare
    with recording:
        run(model)
        assert recording.ring is not first
        assert RingReader(recording.ring.path).live()["steps"] == 1
    assert RingReader(first.path).live()["steps"] == 0


def test_two_recordings_of_one_model_and_a_policy_between_come_off_in_any_order(tmp_path):
    from moexray.runtime.router import attach as put_over

    model = tiny("mixtral")
    bare, before = hooks(model), run(model)
    one, policy, two = attach(model), put_over(model, "temperature:value=3"), attach(model, folder=tmp_path / "own")
    run(model)
    one.detach()
    run(model)
    policy.detach()
    assert torch.equal(run(model), before)
    two.detach()
    assert hooks(model) == bare
    assert [RingReader(r.ring.path).live()["steps"] for r in (one, two)] == [1, 3]


def test_a_second_recording_into_the_same_folder_is_refused_with_words(caplog):
    model = tiny("mixtral")
    with attach(model) as one:
        once = hooks(model)
        two, inner = attach(model), attach(model.model)
        for refused in (two, inner):
            assert not refused.attached
            assert refused.reason == f"the model is recorded already, into {one.ring.path}"
        assert hooks(model) == once
        run(model)
        two.detach()
        assert hooks(model) == once
        assert attach(tiny("mixtral")).attached
    with two.attach():
        run(model)
    assert [RingReader(r.ring.path).live()["steps"] for r in (one, two)] == [1, 1]
    assert len(caplog.records) == 1


def test_another_model_of_the_same_class_is_not_recorded_and_a_block_with_a_forward_of_its_own_is():
    model, other = tiny("mixtral"), tiny("mixtral")
    block = model.model.layers[1].mlp
    block.forward = own = partial(type(block).forward, block)
    before, bare = run(model), hooks(model)
    with attach(model) as recording:
        assert torch.equal(run(model), before)
        assert torch.equal(run(other), before)
        records = RingReader(recording.ring.path).read().records
    assert records["kind"].tolist() == [ROUTER, ROUTER, STEP]
    assert (records["t1_ns"] > records["t0_ns"]).all()
    assert block.forward is own
    assert hooks(model) == bare


def test_a_detached_recording_under_a_foreign_replacement_only_passes_on():
    model = tiny("mixtral")
    before, kind = run(model), type(model.model.layers[0].mlp)
    own = kind.forward
    recording = attach(model)
    below = kind.forward

    def foreign(*args, **kwargs):
        return below(*args, **kwargs)

    kind.forward = foreign
    try:
        run(model)
        recording.detach()
        assert recording.covered == (f"{kind.__name__}.forward",)
        assert torch.equal(run(model), before)
        assert RingReader(recording.ring.path).written == 3
    finally:
        kind.forward = below
        recording.detach()
    assert kind.forward is own


def test_an_inner_call_after_a_whole_forward_is_a_step_of_its_own():
    model = tiny("mixtral")
    with attach(model) as recording, torch.inference_mode():
        run(model)
        model.model(tokens(1, 5))
        records = RingReader(recording.ring.path).read().records
    assert records["step"].tolist() == [0, 0, 0, 1, 1]
    assert records["rows"].tolist() == [24, 24, 24, 5, 5]


def test_generate_gives_a_step_a_token():
    model = tiny("qwen3_moe")
    with attach(model) as recording, torch.inference_mode():
        model.generate(tokens(1, 5), max_new_tokens=4, min_new_tokens=4, do_sample=False)
        recording.flush()
        batch = RingReader(recording.ring.path).read()
    steps = batch.records[batch.records["kind"] == STEP]
    assert steps["rows"].tolist() == [5, 1, 1, 1]


def test_an_inner_model_called_alone_still_has_steps():
    model = tiny("mixtral")
    with attach(model) as recording, torch.inference_mode():
        for _ in range(3):
            model.model(tokens())
        records = RingReader(recording.ring.path).read().records
    assert records["kind"].tolist() == [ROUTER] * 6
    assert len(set(records["step"][::2])) == 3
    assert (records["step"][::2] == records["step"][1::2]).all()


@pytest.mark.parametrize("by_kernels", [False, True])
def test_forwards_of_two_threads_do_not_mix(by_kernels):
    model, done = tiny("mixtral"), []
    batches = [tokens(2, 12), tokens(1, 7)]
    alone = [counted(model, b) for b in batches]

    def work(batch):
        for _ in range(20):
            run(model, batch)
        done.append(batch)

    with attach(model, by_kernels=by_kernels) as recording:
        threads = [threading.Thread(target=work, args=(b,)) for b in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recording.flush()
        reader = RingReader(recording.ring.path)
        batch = reader.read()
    assert len(done) == 2
    live = reader.live()
    assert (live["steps"] + live["failures"], recording.guard.figures().fallbacks) == (40, 0)
    if not by_kernels:
        assert live["failures"] == 0
        assert (reader.totals() == 20 * (alone[0] + alone[1])).all()
    for step in set(batch.records["step"].tolist()):
        rows = (batch.records["step"] == step) & (batch.records["kind"] == ROUTER)
        assert any((batch.counts[rows] == a).all() for a in alone)


def test_a_forward_that_raises_leaves_no_step_and_the_next_one_is_whole(monkeypatch):
    model = tiny("mixtral")
    with attach(model) as recording:
        with monkeypatch.context() as patch:
            patch.setattr(model.model.layers[1].mlp.experts, "forward", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                run(model)
        assert RingReader(recording.ring.path).written == 2  # at once: perhaps no other forward comes
        run(model)
        records = RingReader(recording.ring.path).read().records
    assert records["kind"].tolist() == [ROUTER, ROUTER, ROUTER, ROUTER, STEP]
    assert records["step"].tolist() == [0, 0, 1, 1, 1]
    assert (records["t1_ns"] > records["t0_ns"]).tolist() == [True, False, True, True, True]
    assert (records["t1_ns"] - records["t0_ns"] >= 0).all()


def test_what_the_hooks_raise_is_counted_never_seen_and_ends_after_some_calls(monkeypatch, caplog):
    model = tiny("mixtral")
    before = run(model)
    with attach(model) as recording:
        monkeypatch.setattr(recording.ring, "hold", lambda *_, **__: 1 // 0)
        for _ in range(8):
            assert torch.equal(run(model), before)
        assert recording.guard.figures().fallbacks == guards.PATIENCE
        assert RingReader(recording.ring.path).live()["failures"] == guards.PATIENCE
    assert [r.message for r in caplog.records if "ZeroDivisionError" in r.message] != []
    assert len(caplog.records) == 1


def test_what_the_start_of_a_step_raises_is_counted_and_never_seen(monkeypatch):
    model = tiny("mixtral")
    before = run(model)
    with attach(model) as recording:
        with monkeypatch.context() as patch:
            patch.setattr(model.model.norm, "forward", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                run(model)  # its calls are held
        with monkeypatch.context() as patch:
            hold = recording.ring.hold
            patch.setattr(recording.ring, "hold", lambda *a, **b: hold(*a, **b) if a[2] else {}["ring"])
            assert torch.equal(run(model), before)
        assert torch.equal(run(model), before)
        assert recording.guard.figures().error == "KeyError: 'ring'"
        recording.flush()
        live = RingReader(recording.ring.path).live()
        assert (live["steps"], live["failures"]) == (2, 1)


def test_the_kill_switches_stop_recording(monkeypatch):
    model = tiny("mixtral")
    before = run(model)
    with attach(model) as recording:
        switch("attach", on=False)
        assert torch.equal(run(model), before)
        reader = RingReader(recording.ring.path)
        assert reader.written == 0
        switch("attach", on=True)
        run(model)
        assert reader.written == 3
    monkeypatch.setenv(guards.VARIABLE, "attach")
    with attach(model) as recording:
        run(model)
        assert RingReader(recording.ring.path).written == 0


def test_an_unknown_release_or_router_changes_nothing_and_is_told_once(monkeypatch, caplog):
    import sys

    model = tiny("mixtral")
    bare = hooks(model)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["transformers"], "__version__", "6.0.0")
        for _ in range(2):
            recording = attach(model)
            assert not recording.attached
    assert "transformers 6.0.0" in recording.reason
    gate = model.model.layers[0].mlp.gate
    gate.__class__ = type("NewRouter", (type(gate),), {"__module__": "transformers.models.new"})
    assert "NewRouter: this class is not known" in attach(model).reason
    assert hooks(model) == bare
    assert len(caplog.records) == 2


def test_no_space_for_the_ring_changes_nothing(monkeypatch, folder):  # noqa: F811
    import os

    def full(fd, start, size):
        raise OSError(28, "No space left on device")

    model = tiny("mixtral")
    bare = hooks(model)
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert "No space left" in attach(model).reason
    assert hooks(model) == bare
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("by_kernels", [False, True])
def test_compiled_code_runs_as_before_without_records(by_kernels):
    model = tiny("mixtral")
    with attach(model, by_kernels=by_kernels) as recording:
        torch.compiler.reset()
        compiled = torch.compile(model, backend="eager")
        with torch.inference_mode():
            assert torch.equal(compiled(tokens(), use_cache=False).logits, run(model))
        assert recording.guard.figures().fallbacks == 0
    torch.compiler.reset()


@pytest.mark.parametrize("how", ["model", "in place", "layer", "elsewhere"])
def test_a_model_whose_routers_are_compiled_is_refused(how):
    model = tiny("mixtral")
    whole = torch.compile(model, backend="eager") if how == "model" else model
    {"in place": model, "layer": model.model.layers[1], "elsewhere": model.lm_head}.get(how, torch.nn.Module()).compile(backend="eager")
    bare = hooks(model)
    with attach(whole) as recording:
        assert recording.attached == (how == "elsewhere")
        assert how == "elsewhere" or "torch.compile" in recording.reason
        assert recording.attached or (hooks(model) == bare and recording.reason in repr(recording))
    torch.compiler.reset()


@pytest.mark.parametrize("model", [None, "x", 5, object])
def test_what_is_no_module_is_told(model):
    assert "is no torch module" in attach(model).reason


def test_a_recording_says_what_it_is():
    with attach(tiny("mixtral")) as recording:
        assert repr(recording) == f"<Recording: 2 routers of MixtralForCausalLM into {recording.ring.path}>"
    assert repr(recording) == "<Recording: not attached>"


@pytest.mark.parametrize("wrong", [-1, 9])
def test_ids_that_name_no_expert_are_not_counted(monkeypatch, wrong):
    model, many = tiny("mixtral"), tokens(2, 12)
    own, kind = counted(model, many), type(routers(model, to_write=False)[0])
    read = kind.ids

    def spoilt(self, seen):
        ids = read(self, seen).clone()
        ids[0, 0] = wrong
        return ids

    monkeypatch.setattr(kind, "ids", spoilt)
    with attach(model, ids=5) as recording:
        run(model, many)
        reader = RingReader(recording.ring.path)
        batch = reader.read()
    rows = batch.records["kind"] == ROUTER
    assert (batch.records["pairs"][rows] == 48).all()
    assert (reader.totals() == batch.counts[rows]).all()
    assert (own - reader.totals()).sum() == len(own)


@pytest.mark.parametrize("with_block", [False, True])
def test_large_calls_do_not_wait_for_the_end_of_their_step(monkeypatch, with_block):
    model, seen = tiny("mixtral"), []
    monkeypatch.setattr("moexray.runtime.attach.HELD", 47)  # pairs of a call here: 48
    found = routers(model, to_write=False)
    if not with_block:
        monkeypatch.setattr("moexray.runtime.attach.routers", lambda *_, **__: [replace(r, block=None) for r in found])
    with attach(model) as recording:
        reader = RingReader(recording.ring.path)
        model.model.norm.register_forward_pre_hook(lambda *_: seen.append(reader.written))
        run(model)
    assert seen == [len(found)]
