"""A recording of real model classes: the records are what the routers chose, and the model never notices."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import moexray  # noqa: E402
from moexray.live.drain import ROUTER, STEP, RingReader  # noqa: E402
from moexray.runtime import guard as guards  # noqa: E402
from moexray.runtime.attach import READ_EVERY, attach  # noqa: E402
from moexray.runtime.engines.transformers import routers  # noqa: E402
from moexray.runtime.guard import switch  # noqa: E402
from tiny_models import MODELS, tiny, tokens  # noqa: E402


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    path = tmp_path / "rings"
    path.mkdir(0o700)
    monkeypatch.setenv("MOEXRAY_RINGS", str(path))
    for kept in ("_said", "_off"):
        monkeypatch.setattr(guards, kept, set())
    monkeypatch.delenv(guards.VARIABLE, raising=False)
    return path


def run(model, batch=None):
    with torch.inference_mode():
        return model(tokens() if batch is None else batch, use_cache=False).logits


def hooks(model):
    """Every hook of every module, by identity."""
    return [
        (id(m), [list(map(id, table.values())) for table in (m._forward_hooks, m._forward_pre_hooks)])
        for m in model.modules()
    ]


def counted(model, batch=None):
    """[sites, experts]: an independent count of what the routers return in one forward."""
    found = routers(model, to_write=False)
    counts = np.zeros((len(found), found[0].experts), np.int64)

    def count(number, router):
        def hook(module, args, output):
            np.add.at(counts[number], router.read(output)[2].flatten().numpy(), 1)

        return router.module.register_forward_hook(hook)

    handles = [count(number, router) for number, router in enumerate(found)]
    run(model, batch)
    for handle in handles:
        handle.remove()
    return counts


FAMILIES = [name for name in MODELS if name != "deepseek_v2_greedy"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("by_kernels", [False, True])
def test_outputs_are_bitwise_the_same_counts_are_the_routers_and_detaching_restores_all(name, by_kernels):
    model = tiny(name)
    before, own, bare = run(model), counted(model), hooks(model)
    recording = attach(model, by_kernels=by_kernels)
    assert recording.reason == ""
    for _ in range(3):
        assert torch.equal(run(model), before)
    recording.detach()
    assert hooks(model) == bare
    assert torch.equal(run(model), before)
    reader = RingReader(recording.ring.path)
    assert (reader.totals() == 3 * own).all()
    assert (reader.tokens() == 3 * 24).all()
    batch = reader.read()
    sites = len(own)
    router = batch.records["kind"] == ROUTER
    assert batch.records["step"].tolist() == [s for s in range(3) for _ in range(sites + 1)]
    for step in range(3):
        rows = router & (batch.records["step"] == step)
        assert sorted(batch.records["site"][rows]) == list(range(sites))
        assert (batch.counts[rows][np.argsort(batch.records["site"][rows])] == own).all()
    assert (batch.records["layer"][router] == [reader.meta.sites[s].layer for s in batch.records["site"][router]]).all()
    steps = batch.records[~router]
    assert (steps["rows"] == 24).all()
    for step, row in enumerate(steps):
        inner = batch.records[router & (batch.records["step"] == step)]
        assert (inner["t0_ns"] <= inner["t1_ns"]).all()
        assert row["t0_ns"] <= inner["t0_ns"].min() <= inner["t1_ns"].max() <= row["t1_ns"]
    live = reader.live()
    assert (live["steps"], live["failures"], live["closed"]) == (3, 0, 1)
    assert 0 < live["own_ns"] < live["step_ns"]


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


def test_two_recordings_of_one_model_and_a_policy_between_come_off_in_any_order():
    from moexray.runtime.router import attach as put_over

    model = tiny("mixtral")
    bare, before = hooks(model), run(model)
    one, policy, two = attach(model), put_over(model, "temperature:value=3"), attach(model)
    run(model)
    one.detach()
    run(model)
    policy.detach()
    assert torch.equal(run(model), before)
    two.detach()
    assert hooks(model) == bare
    assert [RingReader(r.ring.path).live()["steps"] for r in (one, two)] == [1, 3]


def test_generate_gives_a_step_a_token():
    model = tiny("qwen3_moe")
    with attach(model) as recording, torch.inference_mode():
        model.generate(tokens(1, 5), max_new_tokens=4, min_new_tokens=4, do_sample=False)
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


def test_a_second_thread_is_refused_by_a_device_until_the_first_ones_forward_is_over():
    model = tiny("mixtral")
    batches = [tokens(2, 12), tokens(1, 7), tokens(1, 5)]
    alone = [counted(model, b) for b in batches]
    inside, go = threading.Event(), threading.Event()

    def wait(_module, _args):
        if threading.current_thread().name == "first":
            inside.set()
            assert go.wait(60)

    with attach(model, by_kernels=True) as recording:
        waiting = model.model.layers[1].register_forward_pre_hook(wait)
        first = threading.Thread(target=run, args=(model, batches[0]), name="first")
        first.start()
        assert inside.wait(60)
        run(model, batches[1])  # meanwhile: refused
        reader = RingReader(recording.ring.path)
        assert reader.live()["failures"] == 1
        go.set()
        first.join()
        waiting.remove()
        run(model, batches[2])
        recording.flush()
        assert (reader.totals() == alone[0] + alone[2]).all()
        assert (reader.live()["steps"], reader.live()["failures"]) == (2, 1)


def test_a_forward_that_raised_in_one_thread_leaves_the_device_to_others(monkeypatch):
    model, raised = tiny("mixtral"), []
    own = counted(model)

    def fail():
        with monkeypatch.context() as patch:
            patch.setattr(model.model.norm, "forward", lambda *_: 1 // 0)
            try:
                run(model)
            except ZeroDivisionError as why:
                raised.append(why)

    with attach(model, by_kernels=True) as recording:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        run(model)
        recording.flush()
        reader = RingReader(recording.ring.path)
        assert len(raised) == 1
        assert (reader.totals() == 2 * own).all()
        assert (reader.live()["steps"], reader.live()["failures"]) == (1, 0)


def test_inner_models_of_two_threads_do_not_mix_on_a_device():
    model = tiny("mixtral")
    with attach(model, by_kernels=True) as recording, torch.inference_mode():
        one = threading.Thread(target=lambda: model.model(tokens(1, 7)))
        model.model(tokens(2, 12))
        one.start()
        one.join()
        model.model.layers[1].mlp(torch.zeros(1, 3, model.config.hidden_size))  # goes on in a step of its own
        recording.flush()
        batch = RingReader(recording.ring.path).read()
    assert [rows for _, rows in sorted(zip(batch.records["step"], batch.records["rows"], strict=True))] == [24, 24, 7, 7, 3]


def test_a_forward_that_raises_leaves_no_step_and_the_next_one_is_whole(monkeypatch):
    model = tiny("mixtral")
    with attach(model) as recording:
        with monkeypatch.context() as patch:
            patch.setattr(model.model.layers[1].mlp.experts, "forward", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                run(model)
        run(model)
        records = RingReader(recording.ring.path).read().records
    assert records["kind"].tolist() == [ROUTER, ROUTER, ROUTER, STEP]
    assert records["step"].tolist() == [0, 1, 1, 1]
    assert (records["t1_ns"] - records["t0_ns"] >= 0).all()


def test_what_the_hooks_raise_is_counted_never_seen_and_ends_after_some_calls(monkeypatch, caplog):
    model = tiny("mixtral")
    before = run(model)
    with attach(model) as recording:
        monkeypatch.setattr(recording.ring, "step", lambda *_, **__: 1 // 0)
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
            patch.setattr(model.model.norm, "forward", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                run(model)  # its calls are held
        with monkeypatch.context() as patch:
            patch.setattr(recording.ring, "write", lambda *_, **__: {}["ring"])
            assert torch.equal(run(model), before)
        assert torch.equal(run(model), before)
        assert recording.guard.figures().error == "KeyError: 'ring'"
        live = RingReader(recording.ring.path).live()
        assert (live["steps"], live["failures"]) == (2, 1)


def test_what_a_device_raises_at_the_start_of_a_step_is_counted_and_never_seen(monkeypatch):
    model = tiny("mixtral")
    before = run(model)
    with attach(model, by_kernels=True) as recording:
        monkeypatch.setattr(recording._device._counter, "begin", lambda: 1 // 0)
        for _ in range(3):
            assert torch.equal(run(model), before)
        live = RingReader(recording.ring.path).live()
        assert (live["steps"], live["failures"]) == (0, 3)
        assert recording.guard.figures().fallbacks == 3


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


def test_no_space_for_the_ring_changes_nothing(monkeypatch, folder):
    import os

    def full(fd, start, size):
        raise OSError(28, "No space left on device")

    model = tiny("mixtral")
    bare = hooks(model)
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert "No space left" in attach(model).reason
    assert hooks(model) == bare
    assert list(folder.iterdir()) == []


def test_counts_of_a_device_come_in_copies_and_what_nobody_hooked_is_told_as_replayed():
    model = tiny("mixtral")
    own = counted(model)
    with attach(model, by_kernels=True) as recording:
        reader = RingReader(recording.ring.path)
        for _ in range(READ_EVERY):
            run(model)
        assert reader.written == 0
        run(model)
        assert reader.live()["steps"] == READ_EVERY
        recording.flush()
        assert (reader.totals() == (READ_EVERY + 1) * own).all()
        assert (reader.read().records["graph"] == 0).all()
        counter = recording._device._counter  # a replay: kernels without hooks
        counter.begin()
        counter.add(1, torch.tensor([[3, 4]]))
        recording.flush()
        batch = reader.read()
        assert [(r["site"], r["rows"], r["pairs"], r["t0_ns"], r["graph"]) for r in batch.records] == [(1, 1, 2, 0, 1)]
        run(model)
    assert RingReader(recording.ring.path).live()["steps"] == READ_EVERY + 2


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
