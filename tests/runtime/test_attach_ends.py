"""What a recording does at the edges: a deleted model, a signal in the midst of it, no output."""

import gc
import threading
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from moexray.live.drain import RingReader  # noqa: E402
from moexray.runtime.attach import attach  # noqa: E402
from moexray.runtime.recorder import Ring, Site  # noqa: E402
from recorded import folder, run  # noqa: E402, F401
from tiny_models import tiny, tokens  # noqa: E402


def held(ring, step):
    ring.hold(step, 1, (1000 + step) * 1_000_000, 1, calls=[(0, 1, 2, np.array([[step % 4]]))])


@pytest.mark.parametrize("then", [lambda ring: ring.flush(), lambda ring: ring.close(), lambda ring: held(ring, 2)])
def test_a_signals_handler_in_the_midst_of_recording_does_not_wait_for_itself(folder, monkeypatch, then):  # noqa: F811
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    held(ring, 0)
    reader, put = RingReader(ring.path), ring._put
    monkeypatch.setattr(ring, "_put", lambda steps: (then(ring), put(steps)))
    held(ring, 1)
    worker = threading.Thread(target=ring.flush, daemon=True)
    worker.start()
    worker.join(20)
    assert not worker.is_alive()
    monkeypatch.undo()
    ring.close()
    live = reader.live()
    assert (live["closed"], live["held"], live["failures"]) == (1, 0, 0)
    assert reader.totals().sum() == live["steps"] >= 2


def test_a_model_that_is_deleted_while_it_is_recorded_is_gone_and_its_ring_closed():

    model = tiny("mixtral")
    recording = attach(model)
    run(model)
    path, parts = recording.ring.path, [weakref.ref(module) for module in model.modules()]
    del model, recording
    gc.collect()
    assert [part() for part in parts if part() is not None] == []
    assert RingReader(path).live()["closed"] == 1


def test_a_forward_without_an_output_is_a_step(monkeypatch):
    model = tiny("mixtral")
    inner = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda *args, **kwargs: inner(*args, **kwargs) and None)
    with attach(model) as recording, torch.inference_mode():
        assert model(tokens(), use_cache=False) is None
        assert RingReader(recording.ring.path).live()["steps"] == 1


def test_where_no_thread_can_be_had_steps_are_recorded_at_once(folder, monkeypatch):  # noqa: F811
    def refuse(_):
        raise RuntimeError("can't start new thread")

    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for step in range(3):
            held(ring, step)
            assert RingReader(ring.path).live()["steps"] == step + 1
    held(ring, 3)
    live = RingReader(ring.path).live()
    assert (live["steps"], live["held"], live["failures"]) == (3, 1, 0)
    ring.close()
