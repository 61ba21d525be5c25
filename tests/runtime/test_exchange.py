"""The interface of an exchange: results, sizes, closing, threads, wrong use."""

import gc
import os
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
from pathlib import Path

import pytest

import exchange_pool
from exchange_pool import SMALL
from exchange_pool import in_threads as ranks
from moexray.core.errors import ExchangeError, UsageError
from moexray.runtime.exchange import Exchange, Options


@pytest.fixture(scope="module")
def pool():
    pool = exchange_pool.Pool()
    yield pool
    pool.close()
    assert exchange_pool.leftovers() == []


# ------------------------------------------------------------------ results


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("rungs", [["shm"], ["ring"]])
@pytest.mark.parametrize("direct", [True, False])
def test_every_byte_arrives_in_order(pool, world, rungs, direct, tmp_path):
    options = {"rungs": rungs, "checksums": True, "folder": str(tmp_path), "direct": direct}
    group = exchange_pool.group(f"order {world} {rungs[0]} {direct}")
    for seed in range(2):
        jobs = exchange_pool.jobs(group, world, seed=seed, turns=6, max_bytes=30000, options=options)
        for answer in exchange_pool.run(pool, jobs):
            assert answer["error"] == ""
            assert answer["turns"] == 6
            assert answer["rung"] == rungs[0]
            assert answer["third_party"] == []
            assert answer["maps"] == []
    assert not list(tmp_path.iterdir())


def test_zero_counts_and_nothing_at_all():
    def body(rank, opened):
        with opened() as exchange:
            nothing = exchange.all_to_all(b"", [0, 0])
            one_way = exchange.all_to_all(b"abc" if rank == 0 else b"", [0, 3] if rank == 0 else [0, 0])
            return [bytes(x) for x in nothing], [bytes(x) for x in one_way], exchange.counters()

    zero, one = ranks("zero", 2, body)
    assert zero[:2] == ([b"", b""], [b"", b""])
    assert one[:2] == ([b"", b""], [b"abc", b""])
    assert zero[2].exchanges == 2
    assert (zero[2].sent_bytes, zero[2].received_bytes) == (3, 0)
    assert (one[2].sent_bytes, one[2].received_bytes) == (0, 3)
    assert one[2].fallbacks == ()


def test_rows_of_other_types_and_shapes_are_bytes():
    import numpy as np

    def body(rank, opened):
        with opened() as exchange:
            send = np.arange(12, dtype=np.int32).reshape(4, 3) + 100 * rank
            out = np.zeros((4, 3), np.int32)
            exchange.all_to_all(send, [12, 36], recv_bytes=[12 + 24 * rank] * 2, out=np.zeros(24, np.int32))
            exchange.all_to_all(send, [24, 24], recv_bytes=[24, 24], out=out)
            empty = exchange.all_to_all(np.zeros((0, 3)), [0, 0])
            return out.tolist(), len(empty)

    zero, one = ranks("rows", 2, body)
    assert zero == ([[0, 1, 2], [3, 4, 5], [100, 101, 102], [103, 104, 105]], 2)
    assert one == ([[6, 7, 8], [9, 10, 11], [106, 107, 108], [109, 110, 111]], 2)


def test_steady_state_keeps_its_buffers():
    def body(rank, opened):
        with opened() as exchange:
            send, out = bytearray(os.urandom(40000)), bytearray(40000)
            for _ in range(20):
                exchange.all_to_all(send, [20000, 20000], recv_bytes=[20000, 20000], out=out)
            if rank == 0:
                tracemalloc.start()
            for turn in range(200):
                exchange.all_to_all(send, [20000, 20000], recv_bytes=[20000, 20000], out=out)
                if rank == 0 and turn == 20:
                    tracemalloc.reset_peak()
                    before = tracemalloc.get_traced_memory()[0]
            if rank == 0:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                return peak - before
            return 0

    # Views, packets and messages only: no buffer, and nothing that grows with the turns.
    assert ranks("steady", 2, body)[0] < 20000


# ------------------------------------------------------------------ wrong use


def test_wrong_arguments_are_refused_before_anything_is_sent():
    def body(rank, opened):
        with opened() as exchange:
            messages, both = [], memoryview(bytearray(6))
            for call in (
                lambda: exchange.all_to_all(b"abc", [1, 1]),
                lambda: exchange.all_to_all(b"abc", [4, -1]),
                lambda: exchange.all_to_all(b"abc", [3]),
                lambda: exchange.all_to_all(b"abc", [1.5, 1.5]),
                lambda: exchange.all_to_all(b"abc", None),
                lambda: exchange.all_to_all(b"abc", [3, 0], recv_bytes=[1]),
                lambda: exchange.all_to_all(b"abc", [3, 0], out=b"read only"),
                lambda: exchange.all_to_all(b"abc", [3, 0], recv_bytes=[1 << 70, 0], out=bytearray(9)),
                lambda: exchange.all_to_all(memoryview(b"abcdef")[::2], [3, 0]),
                lambda: exchange.all_to_all(both[:3], [3, 0], out=both[1:]),
            ):
                with pytest.raises(UsageError) as error:
                    call()
                messages.append(error.value.what)
            fine = exchange.all_to_all(b"ab", [1, 1])  # the group goes on
            return messages, [bytes(x) for x in fine]

    for messages, fine in ranks("wrong", 2, body):
        assert messages[0] == "send holds 3 bytes, send_bytes sum up to 2"
        assert "2 counts of bytes" in messages[1]
        assert fine in ([b"a", b"a"], [b"b", b"b"])


@pytest.mark.parametrize("world", [0, -1, 257])
def test_worlds_and_ranks_that_cannot_be(world):
    with pytest.raises(UsageError, match="rank 0 of"):
        Exchange.open("g", 0, world)


@pytest.mark.parametrize(
    "fields",
    [{"rungs": ()}, {"rungs": ("tcp",)}, {"ring_bytes": 5000}, {"ring_bytes": 0}, {"file_ring_bytes": 100},
     {"ring_bytes": 4096.0}, {"spare_bytes": -1}, {"max_bytes": None}],
)
def test_options_that_cannot_be(fields):
    with pytest.raises(UsageError):
        Options(**fields)


def test_group_names_and_timeouts_that_cannot_be():
    with pytest.raises(UsageError, match="group name of 70 bytes"):
        Exchange.open("g" * 70, 0, 1)
    for timeout_s in (0, float("nan"), "3", None):
        with pytest.raises(UsageError, match=f"timeout of {timeout_s}"):
            Exchange.open("g", 0, 1, Options(timeout_s=timeout_s))


def test_the_kill_switch(monkeypatch):
    monkeypatch.setenv("MOEXRAY_OFF", "router,exchange")
    with pytest.raises(ExchangeError, match="switched off"):
        Exchange.open("g", 0, 1)


@pytest.mark.parametrize("limit", [3, 4, 5, 7, 8, 9])
def test_a_rank_without_descriptors_is_named(limit):
    """From no socket at all to no mapping; the other rank hears of it, and gives all of its own back."""
    code = """
import os, resource, sys
from moexray.runtime.exchange import Exchange, Options
from moexray.core.errors import ExchangeError
group, limit = f"fds {os.getpid()}", int(sys.argv[1])
child = os.fork()
if not child:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
before = len(os.listdir("/proc/self/fd")) if child else 0
try:
    with Exchange.open(group, int(not child), 2, Options(timeout_s=2.0)) as exchange:
        exchange.all_to_all(b"", [0, 0])
    fine = True
except ExchangeError as why:
    fine = why.ranks == (1,)
if not child:
    os._exit(0 if fine else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert fine
assert len(os.listdir("/proc/self/fd")) == before
"""
    done = subprocess.run([sys.executable, "-c", code, str(limit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_closed_twice_then_refused():
    exchange = Exchange.open(exchange_pool.group("closed"), 0, 1, Options(**SMALL))
    assert [bytes(x) for x in exchange.all_to_all(b"self", [4])] == [b"self"]
    exchange.close()
    exchange.close()
    with pytest.raises(UsageError, match="closed"):
        exchange.all_to_all(b"", [0])


def test_a_second_thread_is_refused():
    def body(rank, opened):
        with opened() as exchange:
            exchange._busy.acquire()
            with pytest.raises(UsageError, match="another thread"):
                exchange.all_to_all(b"", [0, 0])
            exchange._busy.release()
            return len(exchange.all_to_all(b"", [0, 0]))

    assert ranks("threads", 2, body) == [2, 2]


def test_closed_by_another_thread_a_call_goes_on_to_its_end():
    """Rank 0 closes while its call waits for rank 1, which comes only then."""
    is_closed = threading.Event()

    def body(rank, opened):
        with opened() as exchange:
            if rank == 1:
                is_closed.wait(20)
                return [bytes(part) for part in exchange.all_to_all(b"cd", [1, 1])]
            got = []
            caller = threading.Thread(target=lambda: got.append(exchange.all_to_all(b"ab", [1, 1])))
            caller.start()
            while not exchange.counters().waits:
                time.sleep(0.001)
            exchange.close()
            links = list(exchange._mesh.links)
            is_closed.set()
            caller.join(30)
            assert links  # still there for the call
            assert not exchange._mesh.links  # given back by it
            with pytest.raises(UsageError, match="closed"):
                exchange.all_to_all(b"ab", [1, 1])
            return [bytes(part) for part in got[0]]

    assert ranks("closing", 2, body) == [[b"a", b"c"], [b"b", b"d"]]


def test_dropped_without_close_it_gives_its_descriptors_back():
    def body(rank, opened):
        opened().all_to_all(b"ab", [1, 1])
        return True

    gc.collect()
    before = exchange_pool.descriptors()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of the sockets
        assert all(isinstance(seen, ExchangeError) or seen for seen in ranks("dropped", 2, body))
        gc.collect()
    assert exchange_pool.descriptors() == before


def test_a_forked_child_is_refused_and_closes_nothing():
    code = """
import os
from moexray.runtime.exchange import Exchange
from moexray.core.errors import UsageError
with Exchange.open(f"fork {os.getpid()}", 0, 1) as exchange:
    if not (child := os.fork()):
        try:
            exchange.all_to_all(b"", [0])
        except UsageError:
            exchange.close()
            os._exit(7)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert bytes(exchange.all_to_all(b"x", [1])[0]) == b"x"
print(status)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "7\n", done.stderr


def test_no_torch_and_nothing_heavy_on_the_way():
    code = """
import sys
from moexray.runtime.exchange import Exchange
with Exchange.open("modules", 0, 1) as exchange:
    exchange.all_to_all(b"x", [1])
print(sorted({"torch", "numpy", "polars", "numba", "jinja2"} & set(sys.modules)))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "[]\n"
