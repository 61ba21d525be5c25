"""What a recording leaves where its model is deleted, or a signal comes in the midst of it."""

import gc
import threading
import weakref

import numpy as np
import pytest

from moexray.live.drain import RingReader
from moexray.runtime.recorder import Ring, Site
from recorded import folder, run  # noqa: F401


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
    pytest.importorskip("transformers")
    from moexray import attach
    from tiny_models import tiny

    model = tiny("mixtral")
    recording = attach(model)
    run(model)
    path, parts = recording.ring.path, [weakref.ref(module) for module in model.modules()]
    del model, recording
    gc.collect()
    assert [part() for part in parts if part() is not None] == []
    assert RingReader(path).live()["closed"] == 1
