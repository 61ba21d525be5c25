"""One rank as a process: reads jobs (JSON lines) on stdin, answers each with a line on stdout
(and with one when it is ready).

Started with `python -S`, so that nothing but the standard library and moexray can be imported.
A job may tell the worker to kill or stop itself at its n-th step: a step is the begin or the end of
any call that sends, receives, waits, copies, makes or maps.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from moexray.core.errors import MoexrayError
from moexray.runtime.exchange import Exchange, Options, direct, host, mesh, rendezvous, ring, segments

_STEPS = (
    (mesh.Mesh, ("send", "tell", "receive", "wait", "vote", "begin", "close")),
    (ring.Ring, ("put", "take", "pad_reader", "pad_writer")),
    (segments, ("make_memory", "make_file", "map_reading", "map_writing")),
    (rendezvous, ("_listen",)),
    (rendezvous._Meeting, ("connect", "listen", "_accept", "_hear_one")),
    (host.HostRung, ("exchange", "close")),
    (direct, ("read",)),
)
host._PIECE_BYTES = 5000  # several to an offer
_state = {"step": 0, "at": None, "signal": None}


def _tick():
    _state["step"] += 1
    if _state["step"] == _state["at"]:
        os.kill(os.getpid(), _state["signal"])


def _stepped(plain):
    def call(*args, **kwargs):
        _tick()
        try:
            return plain(*args, **kwargs)
        finally:
            _tick()

    return call


def _instrument():
    for owner, names in _STEPS:
        for name in names:
            setattr(owner, name, _stepped(getattr(owner, name)))


def size_of(job, turn, source, target):
    """Bytes that go from source to target in that turn; every rank can tell."""
    rng = random.Random(f"{job['seed']}/{turn}/{source}/{target}")
    return 0 if rng.random() < 0.2 else rng.randrange(job["max_bytes"] + 1)


def part_of(job, turn, source, target):
    return random.Random(f"{job['seed']}-{turn}-{source}-{target}").randbytes(size_of(job, turn, source, target))


def _run(job, answer):
    rank, world = job["rank"], job["world"]
    options = Options(**{**job["options"], "rungs": tuple(job["options"]["rungs"])})
    with Exchange.open(job["group"], rank, world, options) as exchange:
        answer["rung"] = exchange.rung
        if job.get("fork"):
            _leave_a_child()
        for turn in range(job["turns"]):
            parts = [part_of(job, turn, rank, peer) for peer in range(world)]
            sizes = [size_of(job, turn, peer, rank) for peer in range(world)]
            extra = {}
            if (job["seed"] + turn) % 2:  # decided alike on all ranks, though it need not be
                extra = {"recv_bytes": sizes, "out": bytearray(sum(sizes) + 7)}
            send = bytearray(b"".join(parts))
            got = exchange.all_to_all(send, [len(part) for part in parts], **extra)
            send[:] = bytes(len(send))  # what was sent may be reused
            if [bytes(part) for part in got] != [part_of(job, turn, peer, rank) for peer in range(world)]:
                answer["wrong"] = turn
                break
            answer["turns"] += 1
        answer["fallbacks"] = len(exchange.counters().fallbacks)


def _leave_a_child():
    """A child that keeps the sockets of this process open for a while after its death."""
    parent = os.getpid()
    if os.fork():
        return
    for _ in range(600):
        if os.getppid() != parent:
            time.sleep(2)
            os._exit(0)
        time.sleep(0.05)
    os._exit(1)


def _work(job):
    answer = {"turns": 0, "error": "", "ranks": []}
    _state.update(step=0, at=job.get("at"), signal=job.get("signal"))
    began = time.monotonic()
    try:
        _run(job, answer)
    except MoexrayError as why:
        answer.update(error=str(why), ranks=list(getattr(why, "ranks", ())))
    answer.update(
        seconds=time.monotonic() - began,
        steps=_state["step"],
        fds=len(list(Path("/proc/self/fd").iterdir())),
        third_party=sorted({"torch", "numpy"} & set(sys.modules)),
    )
    maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
    answer["maps"] = [line for line in maps if "moexray-exchange" in line or "(deleted)" in line]
    return answer


def _say(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _instrument()
    _say({})
    for line in sys.stdin:
        _say(_work(json.loads(line)))


if __name__ == "__main__":
    main()
