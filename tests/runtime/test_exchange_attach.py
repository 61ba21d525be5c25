"""The wrapped `all_to_all_single` in one process: what is covered, refused, restored."""

import os
import threading

import pytest

from moexray.core.errors import ExchangeError, UsageError
from moexray.runtime import guard
from moexray.runtime.exchange import Exchange, Options, attach
from moexray.runtime.exchange.attach import _sizes
from moexray.runtime.exchange.mesh import Ballots, Mesh
from moexray.runtime.exchange.torch_rungs import TorchRung

torch = pytest.importorskip("torch")
dist = torch.distributed
HOST = Options(rungs=("shm", "ring"), timeout_s=20.0, ring_bytes=4096)


@pytest.fixture(scope="module", autouse=True)
def _one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("options", [HOST, None])
def test_attached_then_detached_twice(options):
    plain = dist.all_to_all_single
    handle = attach(options=options)
    assert handle.attached
    assert dist.all_to_all_single is not plain
    assert handle.rung == ("shm" if options else "gloo")
    out, data = torch.zeros(3, 2), torch.arange(6.0).reshape(3, 2)
    assert dist.all_to_all_single(out, data) is None
    assert torch.equal(out, data)
    assert handle.counters().exchanges == 1
    assert handle.counters().sent_bytes == 24
    handle.detach()
    handle.detach()
    assert dist.all_to_all_single is plain
    with pytest.raises(UsageError, match="the exchange is closed"):
        handle.attach()
    assert dist.all_to_all_single is plain


def test_a_device_that_fails_falls_to_gloo_and_the_call_is_repeated(monkeypatch):
    monkeypatch.setattr(dist, "get_backend", lambda group=None: "fake")

    def broken(*args, **kwargs):
        raise RuntimeError("unhandled cuda error")

    monkeypatch.setattr(dist, "all_to_all_single", broken)
    with attach(options=Options(timeout_s=20.0, rungs=("device", "gloo", "shm"))) as handle:
        assert handle.rung == "device"
        out = torch.zeros(4)
        dist.all_to_all_single(out, torch.ones(4))
        assert out.tolist() == [1.0] * 4
        assert handle.rung == "gloo"
        (fallback,) = handle.counters().fallbacks
    assert (fallback.from_rung, fallback.to_rung, fallback.sequence) == ("device", "gloo", 1)
    assert fallback.reasons == {0: "device: RuntimeError('unhandled cuda error')"}
    assert dist.all_to_all_single is broken


def test_what_torch_refuses_goes_to_torch():
    with attach(options=HOST) as handle:
        with pytest.raises(ValueError, match="contiguous"):
            dist.all_to_all_single(torch.zeros(2, 2), torch.ones(2, 2).T)
        work = dist.all_to_all_single(torch.zeros(2), torch.ones(2), async_op=True)
        work.wait()
        other = dist.new_group([0])
        dist.all_to_all_single(torch.zeros(2), torch.ones(2), group=other)
        assert handle.passed == 3
        assert handle.counters().exchanges == 0


def test_switched_off_by_argument_variable_and_switch(monkeypatch, caplog):
    plain = dist.all_to_all_single
    monkeypatch.setattr(guard, "_said", set())
    monkeypatch.setenv(guard.VARIABLE, "exchange")
    assert "switched off on rank 0" in attach(options=HOST).reason
    monkeypatch.delenv(guard.VARIABLE)
    assert attach(options=HOST, enabled=False).reason
    guard.switch("exchange", on=False)
    try:
        handle = attach(options=HOST)
    finally:
        guard.switch("exchange", on=True)
    assert not handle.attached
    assert (handle.world, handle.rung, handle.counters()) == (0, "", None)
    assert dist.all_to_all_single is plain
    assert caplog.text.count("all_to_all_single stays as it is: switched off on rank 0") == 1  # of three


def test_no_rung_changes_nothing_and_says_why(tmp_path):
    plain = dist.all_to_all_single
    handle = attach(options=Options(rungs=("device",), timeout_s=20.0))
    assert "the process group is one of gloo, not of a device" in handle.reason
    assert not handle.attached
    assert dist.all_to_all_single is plain


@pytest.mark.parametrize(
    ("shape", "splits", "expected"),
    [
        ((4, 3), None, [24, 24]),
        ((4, 3), [3, 1], [36, 12]),
        ((0, 3), None, [0, 0]),
        ((4,), [0, 4], [0, 16]),
        ((3, 3), None, None),
        ((4, 3), [3, 2], None),
        ((4, 3), [5, -1], None),
        ((4, 3), [4], None),
        ((), None, None),
    ],
)
def test_sizes_in_bytes_or_none_where_torch_would_refuse(shape, splits, expected):
    assert _sizes(torch.zeros(shape), splits, 2) == expected


def test_more_that_torch_refuses_goes_to_torch():
    """Each in torch's own words, and nothing is sent."""
    four = torch.zeros(4)
    calls = [
        (torch.zeros(4, dtype=torch.int32), four, {}),
        (four, four.clone(), {"output_split_sizes": [4.0], "input_split_sizes": [4.0]}),
        (four, four.clone(), {"output_split_sizes": [4], "input_split_sizes": torch.tensor([4])}),
        (four.to(torch.complex64), four.to(torch.complex64).conj(), {}),
    ]
    with attach(options=HOST) as handle:
        for output, data, options in calls:
            with pytest.raises((TypeError, ValueError, RuntimeError)) as ours:
                dist.all_to_all_single(output, data, **options)
            assert "moexray" not in str(ours.value)
        dist.all_to_all_single(four.to("meta"), four.to("meta"))
        assert handle.passed == len(calls) + 1
        assert handle.counters().exchanges == 0


def test_types_that_gloo_does_not_know_are_bytes():
    with attach(options=HOST):
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.bfloat16):
            data, out = torch.arange(8.0).to(dtype), torch.zeros(8, dtype=dtype)
            dist.all_to_all_single(out, data)
            assert torch.equal(out.view(torch.uint8), data.view(torch.uint8))


@pytest.mark.parametrize("first_out", [0, 1])
def test_attached_twice_and_detached_in_any_order(first_out):
    plain = dist.all_to_all_single
    handles = [attach(options=HOST), attach(options=HOST)]
    out = torch.zeros(4)
    dist.all_to_all_single(out, torch.ones(4))
    assert [h.counters().exchanges for h in handles] == [0, 1]  # the one on top
    handles[first_out].detach()
    dist.all_to_all_single(out, torch.full((4,), 2.0))
    assert out.tolist() == [2.0] * 4
    assert handles[1 - first_out].counters().exchanges == (1 if first_out else 2)
    handles[1 - first_out].detach()
    handles[first_out].detach()
    assert dist.all_to_all_single is plain


def test_the_switch_is_read_at_attach_only():
    """One rank that stepped aside alone would leave the others waiting."""
    with attach(options=HOST) as handle:
        guard.switch("exchange", on=False)
        try:
            dist.all_to_all_single(torch.zeros(2), torch.ones(2))
        finally:
            guard.switch("exchange", on=True)
        assert handle.counters().exchanges == 1


def test_threads_take_turns(monkeypatch):
    """The second call comes while the first is running, and waits for it."""
    is_in, may_go = threading.Event(), threading.Event()
    plain, outs, errors = Exchange._on_some_rung, [torch.zeros(2), torch.zeros(2)], []

    def slow(self, *args):
        if not is_in.is_set():
            is_in.set()
            may_go.wait(20)
        return plain(self, *args)

    def work(number):
        try:
            dist.all_to_all_single(outs[number], torch.full((2,), 1.0 + number))
        except Exception as why:  # noqa: BLE001
            errors.append(why)

    monkeypatch.setattr(Exchange, "_on_some_rung", slow)
    with attach(options=HOST) as handle:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        threads[0].start()
        assert is_in.wait(20)
        threads[1].start()
        threads[1].join(0.2)  # time to be refused, if it were
        assert threads[1].is_alive()
        may_go.set()
        for thread in threads:
            thread.join(30)
        assert (errors, handle.counters().exchanges) == ([], 2)
    assert [out.tolist() for out in outs] == [[1.0, 1.0], [2.0, 2.0]]


def test_detached_while_a_call_waits_for_its_turn_torch_answers():
    handle = attach(options=HOST)
    out = torch.zeros(2)
    caller = threading.Thread(target=dist.all_to_all_single, args=(out, torch.ones(2)))
    with handle._turn:
        caller.start()
        caller.join(0.2)
        handle.detach()
    caller.join(30)
    assert out.tolist() == [1.0, 1.0]
    assert (handle.passed, handle.counters().exchanges) == (1, 0)


def test_a_forked_child_gets_torchs_own_function(monkeypatch):
    calls = []
    monkeypatch.setattr(dist, "all_to_all_single", lambda *args: calls.append(args))
    with attach(options=HOST) as handle:
        pid = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: pid + 1)
        dist.all_to_all_single(torch.zeros(2), torch.ones(2))
        monkeypatch.undo()
        assert (len(calls), handle.passed, handle.counters().exchanges) == (1, 1, 0)


def test_a_failure_is_told_by_every_later_call_until_detached(monkeypatch):
    def broken(*args):
        raise MemoryError

    out = torch.zeros(2)
    with attach(options=HOST) as handle:
        monkeypatch.setattr(Exchange, "_on_some_rung", broken)
        with pytest.raises(MemoryError):
            dist.all_to_all_single(out, torch.ones(2))
        for _ in range(2):
            with pytest.raises(ExchangeError, match="closed since: rank 0 "):
                dist.all_to_all_single(out, torch.ones(2))
        assert handle.passed == 0
    dist.all_to_all_single(out, torch.ones(2))
    assert out.tolist() == [1.0, 1.0]


def test_a_gloo_group_of_ours_goes_where_another_rank_refused(monkeypatch):
    monkeypatch.setattr(dist, "get_backend", lambda group=None: "fake")
    groups = dist.distributed_c10d._world.pg_map
    before = set(groups)
    mesh = Mesh("g", 0, [], 20.0)
    made = []

    def vote(refusal):
        made.append(len(groups) - len(before))
        return Ballots({1: "no gloo"}, {}, {})

    monkeypatch.setattr(mesh, "vote", vote)
    assert TorchRung.open("gloo", mesh, HOST, dist.group.WORLD) == {1: "no gloo"}
    assert made == [1]
    assert set(groups) == before
