"""Ranks that are killed or stopped at random: nothing lost, the right one named, nothing left."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

import exchange_pool

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")

# Groups at a time: most of the time goes by waiting for silence.
LANES = 8
TIMEOUT_S = 2.0
# From the start of a job to the error of a survivor: far more than a busy machine needs, and far less than
# exchange_pool.ANSWER_S.
DETECTED_S = 5 * TIMEOUT_S


@pytest.fixture
def pool():
    pool = exchange_pool.Pool()
    yield pool
    pool.close()


class Case:
    """One group with one victim, from the start to the check."""

    def __init__(self, pool, seed, folder):
        self.rng = rng = random.Random(seed)
        self.world = rng.choice((2, 2, 3, 4))
        self.turns = rng.randrange(2, 12)
        rungs = rng.choice((["shm", "ring"], ["shm", "ring"], ["ring"]))
        self.jobs = exchange_pool.jobs(
            exchange_pool.group(f"kill {seed}"), self.world, seed=seed, turns=self.turns,
            max_bytes=rng.choice((0, 100, 9000, 40000)),
            options={"rungs": rungs, "timeout_s": TIMEOUT_S, "checksums": rng.random() < 0.5, "folder": folder,
                     "direct": rng.random() < 0.6},
        )
        self.victim = rng.randrange(self.world)
        self.is_stop = rng.random() < 0.35
        self.signal = signal.SIGSTOP if self.is_stop else signal.SIGKILL
        self.delay_s = None
        if rng.random() < 0.75:
            self.jobs[self.victim].update(at=rng.randrange(1, 60 * self.world), signal=self.signal)
        else:
            self.delay_s = rng.random() ** 2 * 0.06
        self.workers = pool.take(self.world)
        for worker, job in zip(self.workers, self.jobs, strict=True):
            worker.ask(job)
        if self.delay_s is not None:
            time.sleep(self.delay_s)
            os.kill(self.workers[self.victim].pid, self.signal)

    def finish(self, pool):
        """Collects the answers; the victim's last, after it was woken or killed."""
        answers = {
            rank: worker.answer() for rank, worker in enumerate(self.workers) if rank != self.victim
        }
        victim = self.workers[self.victim]
        is_woken = self.is_stop and self.rng.random() < 0.5
        if is_woken:
            os.kill(victim.pid, signal.SIGCONT)
        elif self.is_stop:
            os.kill(victim.pid, signal.SIGKILL)
        late = victim.answer()
        if late is not None:
            answers[self.victim] = late  # the signal struck after its answer, or never
        is_dead = late is None or not (is_woken or (self.delay_s is None and not self.is_stop))
        if is_dead:
            victim.kill()
        pool.give_back([w for w in self.workers if w is not victim or not is_dead])
        return answers

    def judge(self, answers):
        """Every survivor has either all, or an error that names the victim and nobody else.

        Two may see less: a victim that was woken when the others had left, and a rank that came to a
        group which had failed before, and finds nobody there. Returns whether any rank saw a failure.
        """
        late = "did not come in time"
        for rank, answer in answers.items():
            assert "wrong" not in answer, (rank, answer)
            assert answer["maps"] == []
            assert answer["third_party"] == []
            if answer["error"] and rank != self.victim:
                assert answer["seconds"] < DETECTED_S, (rank, answer)
            if not answer["error"]:
                assert answer["turns"] == self.turns
            elif rank != self.victim and not (late in answer["error"] and answer["turns"] == 0):
                assert answer["ranks"] == [self.victim], (rank, self.victim, answer)
        named = [a for r, a in answers.items() if r != self.victim and a["error"]]
        assert not named or any(self.victim in answer["ranks"] for answer in named), (self.victim, answers)
        return any(answer["error"] for answer in answers.values())


def _campaign(pool, seeds, folder):
    """Runs the cases, LANES at a time; how many groups saw a failure."""
    running, failures, seeds = [], 0, list(seeds)
    fds = exchange_pool.descriptors()
    idle_fds = {}
    while seeds or running:
        while seeds and len(running) < LANES:
            running.append(Case(pool, seeds.pop(), str(folder)))
        case = running.pop(0)
        answers = case.finish(pool)
        failures += case.judge(answers)
        for rank, answer in answers.items():
            # Descriptors of a worker after its first job: the same after each later one.
            assert answer["fds"] == idle_fds.setdefault(case.workers[rank].pid, answer["fds"])
    pool.close()
    assert exchange_pool.descriptors() <= fds
    assert exchange_pool.leftovers() == []
    assert not list(Path(folder).iterdir())
    return failures


def test_fifty_groups_with_a_victim_each(pool, tmp_path):
    failures = _campaign(pool, range(50), tmp_path)
    assert failures >= 25  # most signals struck


def test_a_death_is_seen_though_a_forked_child_keeps_the_sockets_open(pool):
    jobs = exchange_pool.jobs(exchange_pool.group("fork"), 2, turns=50)
    jobs[1].update(fork=True, at=200, signal=signal.SIGKILL)
    survivor, dead = exchange_pool.run(pool, jobs)
    assert dead is None
    assert survivor["ranks"] == [1]
    assert " died; last message in exchange " in survivor["error"]


@pytest.mark.soak
def test_thousand_groups_with_a_victim_each(pool, tmp_path):
    failures = _campaign(pool, range(1000, 2000), tmp_path)
    assert failures >= 500
