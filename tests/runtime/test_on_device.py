"""A recording by kernels, as on a device: counts come in copies, and one thread's forward is counted at a time."""

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from moexray.live.drain import RingReader  # noqa: E402
from moexray.runtime.attach import attach  # noqa: E402
from moexray.runtime.engines.transformers import routers  # noqa: E402
from moexray.runtime.on_device import READ_EVERY  # noqa: E402
from recorded import counted, folder, run  # noqa: E402, F401
from tiny_models import tiny, tokens  # noqa: E402


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


def test_calls_of_a_block_that_raised_on_a_device_are_not_read_from_the_host(monkeypatch):
    model = tiny("mixtral")
    own = counted(model)
    with attach(model, by_kernels=True) as recording:
        with monkeypatch.context() as patch:
            patch.setattr(model.model.layers[1].mlp.experts, "forward", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                run(model)
        monkeypatch.setattr(torch.Tensor, "numpy", None)  # as on a device, where it raises
        run(model)
        monkeypatch.undo()
        recording.flush()
        reader = RingReader(recording.ring.path)
        first = own.copy()
        first[1] = 0  # of the block that raised
        assert (reader.totals() == first + own).all()
        assert (reader.live()["steps"], reader.live()["failures"]) == (1, 1)


@pytest.mark.parametrize("by_kernels", [False, True])
def test_the_export_of_a_module_within_is_not_recorded(by_kernels):
    model = tiny("mixtral")
    block, rows = routers(model, to_write=False)[0].block, torch.zeros(1, 3, model.config.hidden_size)
    with attach(model, by_kernels=by_kernels) as recording:
        torch.export.export(block, (rows,), strict=False)
        run(model)
        recording.flush()
        live = RingReader(recording.ring.path).live()
    assert (live["head"], live["failures"]) == (3, 0)
