"""One rank with torch and gloo: runs the scenarios named on the command line, prints what it saw as JSON.

    python exchange_torch_worker.py SCENARIO[,SCENARIO...] RANK WORLD STORE
"""

import json
import os
import signal
import sys
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d

from moexray.core.errors import ExchangeError
from moexray.runtime.exchange import RUNGS, Exchange, Options, attach

PLAIN = dist.all_to_all_single
DTYPES = ("float32", "bfloat16", "int64", "uint8", "bool", "float16", "complex64")
HOST = Options(rungs=("shm", "ring"), timeout_s=30.0, ring_bytes=8192)


def splits_of(rank, world, turn):
    """(received, sent) rows by rank; None where they are even."""
    if turn % 3 == 0:
        return None, None
    rows = [[(7 * a + 3 * b + turn) % 5 * 40 for b in range(world)] for a in range(world)]
    if turn % 3 == 2:
        rows[0] = [0] * world
    return [rows[peer][rank] for peer in range(world)], rows[rank]


def pair(rank, world, turn, function):
    """One call on data of that turn: (output, expected by the plain function)."""
    received, sent = splits_of(rank, world, turn)
    dtype = getattr(torch, DTYPES[turn % len(DTYPES)])
    torch.manual_seed(1000 * turn + rank)
    shape = (sum(sent) if sent else 6 * world, 3)[: 1 + turn % 2]
    data = torch.randint(0, 100, shape).to(dtype)
    results = []
    for f in (function, PLAIN):
        out = torch.zeros((sum(received) if received else 6 * world, *shape[1:]), dtype=dtype)
        assert f(out, data, received, sent) is None
        results.append(out)
    return results


def same(rank, world, turns, start=0):
    for turn in range(start, start + turns):
        got, expected = pair(rank, world, turn, dist.all_to_all_single)
        if not torch.equal(got, expected):
            return False
    return True


def equal(rank, world):
    with attach(options=HOST) as handle:
        is_wrapped = dist.all_to_all_single is not PLAIN
        is_same = same(rank, world, 21)
        work = dist.all_to_all_single(torch.zeros(4), torch.ones(4), async_op=True)
        work.wait()
        try:
            dist.all_to_all_single(torch.zeros(4, 4), torch.ones(4, 4).T)
            refused = ""
        except ValueError as why:
            refused = str(why)
        counters = handle.counters()
        rung = handle.rung
    handle.detach()
    return {
        "rung": rung, "wrapped": is_wrapped, "same": is_same, "refused": refused, "passed": handle.passed,
        "exchanges": counters.exchanges, "restored": dist.all_to_all_single is PLAIN,
        "fallbacks": len(counters.fallbacks),
    }


def gloo_rung(rank, world):
    """The rung itself, then a failure of one rank in one call: all go to shared memory, and stay there."""
    with attach(options=Options(rungs=("device", "gloo", "shm"), timeout_s=9.0)) as handle:
        first, is_same, plain = handle.rung, same(rank, world, 6), distributed_c10d.all_to_all_single
        outs = []
        for turn in range(3):
            if rank == 1 and turn == 1:
                distributed_c10d.all_to_all_single = lambda *a, **k: 1 / 0
            out = torch.zeros(world, dtype=torch.int64)
            dist.all_to_all_single(out, torch.arange(world) + 10 * rank + 100 * turn)
            outs.append(out.tolist())
        distributed_c10d.all_to_all_single = plain
        fallbacks = [(f.from_rung, f.to_rung, f.sequence, f.reasons) for f in handle.counters().fallbacks]
    return {"rung": first, "same": is_same, "fallbacks": fallbacks, "outs": outs, "last": handle.rung}


def device_rung(rank, world):
    """The group's own call as top rung; it fails on rank 0 once, then everything goes over gloo."""
    backend = dist.get_backend
    dist.get_backend = lambda group=None: "fake"
    calls = []

    def fragile(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3 and rank == 0:
            raise RuntimeError("NCCL error: unhandled system error")
        if len(calls) == 3:
            return None  # as a launch on a device: it does not wait for the others
        return PLAIN(*args, **kwargs)

    dist.all_to_all_single = fragile
    with attach(options=Options(rungs=("device", "gloo", "shm"), timeout_s=20.0)) as handle:
        first = handle.rung
        outs = []
        for turn in range(4):
            out = torch.zeros(world, dtype=torch.int64)
            dist.all_to_all_single(out, torch.arange(world) + 10 * rank + 100 * turn)
            outs.append(out.tolist())
        fallbacks = [(f.from_rung, f.to_rung, f.sequence, f.reasons) for f in handle.counters().fallbacks]
        exchanges = handle.counters().exchanges
    dist.get_backend = backend
    return {
        "rung": first, "last": handle.rung, "outs": outs, "fallbacks": fallbacks, "calls": len(calls),
        "restored": dist.all_to_all_single is fragile, "exchanges": exchanges,
    }


def all_rungs(rank, world):
    """Down the whole ladder in one call: the device fails on rank 0, gloo and memory on rank 1."""
    backend, plain = dist.get_backend, distributed_c10d.all_to_all_single
    dist.get_backend = lambda group=None: "fake"

    def fragile(*args, **kwargs):
        if rank == 0:
            raise RuntimeError("CUDA error")

    dist.all_to_all_single = fragile
    options = Options(rungs=RUNGS, timeout_s=9.0, spare_bytes=1 << (60 if rank else 20))
    with attach(options=options) as handle:
        first = handle.rung
        if rank == 1:
            distributed_c10d.all_to_all_single = lambda *a, **k: 1 / 0
        outs = []
        for turn in range(2):
            out = torch.zeros(world, dtype=torch.int64)
            dist.all_to_all_single(out, torch.arange(world) + 10 * rank + 100 * turn)
            outs.append(out.tolist())
        fallbacks = [(f.from_rung, f.to_rung, f.sequence, f.reasons) for f in handle.counters().fallbacks]
        exchanges = handle.counters().exchanges
    dist.get_backend, distributed_c10d.all_to_all_single = backend, plain
    return {"rung": first, "last": handle.rung, "outs": outs, "fallbacks": fallbacks, "exchanges": exchanges}


def overlapping(rank, world):
    """Output and input share memory: the result is that of two buffers, large and small."""
    seen = []
    with attach(options=HOST):
        for size in (8, 40_000):  # within a ring, and read in the sender's memory
            data = torch.arange(size * world) + 10**6 * rank
            apart = torch.zeros_like(data)
            PLAIN(apart, data)
            dist.all_to_all_single(data, data)
            room = torch.arange(size * world + 3) + 10**6 * rank
            dist.all_to_all_single(room[3:], room[:-3])
            seen += [torch.equal(data, apart), torch.equal(room[3:], apart)]
    return seen


def off(rank, world):
    handle = attach(options=HOST, enabled=rank != 1)
    out = {"reason": handle.reason, "plain": dist.all_to_all_single is PLAIN, "same": same(rank, world, 2)}
    handle.detach()
    return out


def raises(rank, world):
    """The host raises inside the block: the very function is back."""
    try:
        with attach(options=HOST):
            same(rank, world, 1)
            {}["host"]
    except KeyError:
        return {"restored": dist.all_to_all_single is PLAIN}


def killed(rank, world):
    """The last rank dies between two calls."""
    with attach(options=HOST):
        fine = same(rank, world, 2)
        if rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_to_all_single(torch.zeros(world), torch.ones(world))
            error, ranks = "", []
        except ExchangeError as why:
            error, ranks = str(why), why.ranks
    return {"same": fine, "error": error, "ranks": list(ranks), "restored": dist.all_to_all_single is PLAIN}


def killed_gloo(rank, world):
    """A rank dies within the collective of gloo."""
    with attach(options=Options(rungs=("gloo", "shm"), timeout_s=15.0)) as handle:
        fine = same(rank, world, 2)
        if rank == world - 1:
            distributed_c10d.all_to_all_single = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_to_all_single(torch.zeros(world), torch.ones(world))
            error, ranks = "", []
        except ExchangeError as why:
            error, ranks = str(why), why.ranks
    return {"same": fine, "error": error, "ranks": list(ranks), "rung": handle.rung}


def sizes(rank, world):
    """Bytes over gloo, sizes unknown to the receiver, then sizes that do not fit."""
    options = Options(rungs=("gloo",), timeout_s=20.0)
    group = f"sizes {sys.argv[4][-30:]}"
    with Exchange.open(group, rank, world, options, dist.group.WORLD) as exchange:
        parts = [bytes([rank, peer]) * (100 * peer + rank) for peer in range(world)]
        got = exchange.all_to_all(b"".join(parts), [len(p) for p in parts])
        right = [bytes(p) for p in got] == [bytes([peer, rank]) * (100 * rank + peer) for peer in range(world)]
        try:
            wrong = [4 + (rank == 0) * (peer == 1) for peer in range(world)]
            exchange.all_to_all(bytes(4 * world), [4] * world, recv_bytes=wrong)
            error = ""
        except ExchangeError as why:
            error = str(why)
    return {"right": right, "error": error}


def _say(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main():
    names, rank, world, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    seen = {}
    for name in names.split(","):
        seen[name] = globals()[name](rank, world)
        dist.all_to_all_single = PLAIN
    _say(seen)
    os._exit(0)  # no collective farewell: the group may be broken on purpose


if __name__ == "__main__":
    main()
