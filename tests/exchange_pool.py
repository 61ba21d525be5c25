"""Ranks as processes for the tests of the exchange: started once, used for many groups."""

import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from moexray.core.errors import ExchangeError, UsageError
from moexray.runtime.exchange import Exchange, Options

_HERE = Path(__file__).parent
# How long a rank may take to answer: far longer than it does, even on a busy machine.
ANSWER_S = 60.0
# Rings that wrap soon.
SMALL = {"timeout_s": 20.0, "ring_bytes": 4096, "file_ring_bytes": 4096}
_MARK = f"test{os.getpid()}"


class Worker:
    """One process of exchange_worker.py."""

    def __init__(self):
        env = {**os.environ, "PYTHONPATH": str(_HERE.parent / "src"), "MOEXRAY_OFF": ""}
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(_HERE / "exchange_worker.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
        )
        self.pid = self.process.pid
        self._rest = b""

    def ask(self, job):
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, seconds=ANSWER_S):
        """The answer to the job; None if the process died, TimeoutError if it says nothing."""
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            if not select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"worker {self.pid} does not answer")
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                self.process.wait()
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Pool:
    """Idle workers; the dead are replaced."""

    def __init__(self):
        self.idle = []

    def take(self, number):
        new = [Worker() for _ in range(number - len(self.idle))]
        for worker in new:
            worker.answer()  # ready: the start of Python shall not count as silence
        self.idle += new
        taken, self.idle = self.idle[:number], self.idle[number:]
        return taken

    def give_back(self, workers):
        self.idle += workers

    def close(self):
        for worker in self.idle:
            worker.kill()
        self.idle = []


def run(pool, jobs):
    """One job per rank; the answers, None for a rank that died."""
    workers = pool.take(len(jobs))
    for worker, job in zip(workers, jobs, strict=True):
        worker.ask(job)
    answers = [worker.answer() for worker in workers]
    pool.give_back([w for w, a in zip(workers, answers, strict=True) if a is not None])
    for worker, answer in zip(workers, answers, strict=True):
        if answer is None:
            worker.kill()
    return answers


def jobs(group, world, **fields):
    """The same job for all ranks of a group."""
    options = {"rungs": ["shm", "ring"], "timeout_s": 20.0, "ring_bytes": 8192, "file_ring_bytes": 4096}
    options.update(fields.pop("options", {}))
    base = {"seed": 1, "turns": 3, "max_bytes": 20000, **fields}
    return [{**base, "group": group, "rank": r, "world": world, "options": dict(options)} for r in range(world)]


def leftovers():
    """What an exchange might leave behind on this host: named segments and sockets of its own."""
    sockets = Path("/proc/net/unix").read_text("utf-8", "replace").splitlines()
    # Rings of the recorder have a folder of their own there.
    named = [path.name for path in Path("/dev/shm").iterdir() if "exchange" in path.name or _MARK in path.name]
    return named + [line.split()[-1] for line in sockets if f"@moexray/{os.getuid()}/" in line and _MARK in line]


def descriptors():
    """Open descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def group(name):
    """A group name that no other test run uses."""
    return f"{_MARK} {name}"


def in_threads(name, world, body, options=None):
    """Runs `body(rank, open)` in a thread per rank; what each returned or raised."""
    seen = [None] * world
    options = options or Options(**SMALL)

    def work(rank):
        def opened(world=world, options=options):
            return Exchange.open(group(name), rank, world, options)

        try:
            seen[rank] = body(rank, opened)
        except (ExchangeError, UsageError) as why:
            seen[rank] = why

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return seen
