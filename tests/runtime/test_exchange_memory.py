"""Segments: short memory, full disks, control groups; nothing is left behind."""

import errno
import os

import pytest

import exchange_pool
from moexray.core.errors import ExchangeError
from moexray.runtime.exchange import segments


@pytest.fixture(scope="module")
def pool():
    pool = exchange_pool.Pool()
    yield pool
    pool.close()
    assert exchange_pool.leftovers() == []


def test_short_memory_on_one_rank_takes_all_to_the_file_ring(pool, tmp_path):
    jobs = exchange_pool.jobs(exchange_pool.group("short"), 3, options={"folder": str(tmp_path)})
    jobs[1]["options"]["spare_bytes"] = 1 << 60
    for answer in exchange_pool.run(pool, jobs):
        assert answer["error"] == ""
        assert answer["rung"] == "ring"
        assert answer["fallbacks"] == 1
        assert answer["maps"] == []
    assert not list(tmp_path.iterdir())


def test_no_memory_and_no_folder_fails_on_all_ranks_with_all_reasons(pool, tmp_path):
    jobs = exchange_pool.jobs(exchange_pool.group("none"), 2, options={"folder": str(tmp_path / "absent")})
    jobs[0]["options"]["spare_bytes"] = 1 << 60
    for answer in exchange_pool.run(pool, jobs):
        assert "rank 0: shm: memory is short" in answer["error"]
        for rank in range(2):
            assert f"rank {rank}: ring: [Errno {errno.ENOENT}]" in answer["error"]
        assert answer["ranks"] == [0, 1]


def test_a_segment_cannot_be_resized_and_a_short_one_is_not_mapped():
    fd = segments.make_memory(8192, 8192, 0)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 4096)
        with pytest.raises(ExchangeError, match="segment of 8192 bytes, 12288 expected"):
            segments.map_reading(fd, 8192, 4096)
    finally:
        os.close(fd)


def test_a_failed_allocation_gives_its_descriptor_back(monkeypatch, tmp_path):
    def full(fd, size):
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(segments, "_allocate", full)
    before = exchange_pool.descriptors()
    for make in (lambda: segments.make_memory(4096, 4096, 0), lambda: segments.make_file(4096, str(tmp_path))):
        with pytest.raises(OSError, match="disk full"):
            make()
    assert exchange_pool.descriptors() == before
