"""Pages: a sequence keeps its bytes while it grows among others; a request fails only when pages are short."""


import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from moexray.core.errors import UsageError
from moexray.runtime.arena import Arena, Pages
from steady import taken

PAGE = 512


def make(pages=8, sequences=4):
    return Pages(Arena(1 << 16), pages=pages, page_bytes=PAGE, sequences=sequences)


def test_a_table_names_pages_in_order():
    pages = make()
    one, two = pages.open(), pages.open()
    assert pages.extend(one, PAGE + 1)
    assert pages.extend(two, 1)
    assert pages.extend(one, PAGE)
    assert pages.table[one, :4].tolist() == [0, 1, 3, -1]
    assert pages.length.tolist()[:2] == [2 * PAGE + 1, 1]
    assert pages.view[0].ctypes.data % 256 == 0
    data = np.arange(2 * PAGE + 1) % 251
    pages.write(one, 0, data.astype(np.uint8))
    out = np.zeros(PAGE, np.uint8)
    pages.read(one, PAGE // 2, out)
    assert out.tolist() == data[PAGE // 2 :][:PAGE].tolist()


def test_it_fails_only_when_pages_are_short():
    pages = make()
    rows = [pages.open() for _ in range(4)]
    assert pages.open() is None
    for row in rows:
        assert pages.extend(row, 2 * PAGE)
    assert pages.free_pages == 0
    assert not pages.extend(rows[0], 1)
    assert pages.length[rows[0]] == 2 * PAGE  # unchanged
    pages.close(rows[0])
    pages.close(rows[2])
    assert pages.extend(rows[1], 4 * PAGE)  # from pages that lie apart


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="multiple of 256"):
        Pages(Arena(1 << 16), pages=2, page_bytes=300, sequences=1)
    arena = Arena(1 << 10)
    with pytest.raises(UsageError, match="do not fit"):
        Pages(arena, pages=3, page_bytes=PAGE, sequences=1)
    assert arena.figures().used_bytes == 0
    pages = make()
    row = pages.open()
    pages.extend(row, 10)
    for wrong in (
        lambda: pages.extend(row, -1),
        lambda: pages.extend(3, 1),
        lambda: pages.extend(-1, 1),
        lambda: pages.read(row, 5, np.zeros(6, np.uint8)),
        lambda: pages.write(row, -1, np.zeros(2, np.uint8)),
    ):
        with pytest.raises(UsageError):
            wrong()
    pages.close(row)
    with pytest.raises(UsageError, match="was it closed"):
        pages.close(row)


def test_tensors():
    torch = pytest.importorskip("torch")
    from moexray.runtime.arena import Memory

    arena = Arena(Memory.take(8 * PAGE, device="cpu"))
    pages = Pages(arena, pages=8, page_bytes=PAGE, sequences=2)
    row = pages.open()
    pages.extend(row, 3 * PAGE)
    data = (torch.arange(3 * PAGE) % 251).to(torch.uint8)
    pages.write(row, 0, data)
    out = torch.empty_like(data)
    pages.read(row, 0, out)
    assert torch.equal(out, data)
    pages.release()
    assert arena.figures().used_bytes == 0


def test_ten_thousand_steady_steps_take_no_memory():
    pages = make()
    data = np.ones(3 * PAGE, np.uint8)

    def step(_=0):
        one = pages.open()
        pages.extend(one, PAGE)
        pages.extend(one, 2 * PAGE)
        pages.write(one, 0, data)
        pages.close(one)

    for _ in range(50):
        step()
    left, peak = taken(step)
    assert left < 1024
    assert peak < 4096


class Sequences(RuleBasedStateMachine):
    """Random growth against plain bytearrays."""

    rows = Bundle("rows")

    def __init__(self):
        super().__init__()
        self.pages = make(12, 6)
        self.plain = {}
        self.count = 0

    @rule(target=rows)
    def open(self):
        row = self.pages.open()
        assert (row is None) == (len(self.plain) == 6)
        if row is not None:
            self.plain[row] = bytearray()
        return row

    @rule(row=rows, size=st.integers(0, 3 * PAGE))
    def extend(self, row, size):
        if row not in self.plain:
            return
        held = len(self.plain[row])
        more = -(-(held + size) // PAGE) - -(-held // PAGE)
        free = self.pages.free_pages
        assert self.pages.extend(row, size) == (more <= free)
        if more <= free:
            self.count += 1
            data = np.full(size, self.count % 251, np.uint8)
            self.pages.write(row, held, data)
            self.plain[row] += data.tobytes()

    @rule(row=consumes(rows))
    def close(self, row):
        if row in self.plain:
            self.pages.close(row)
            del self.plain[row]

    @invariant()
    def bytes_are_kept_and_pages_have_one_owner(self):
        used = [p for row in self.plain for p in self.pages.table[row].tolist() if p >= 0]
        assert len(used) == len(set(used))
        assert len(used) + self.pages.free_pages == 12
        for row, data in self.plain.items():
            out = np.zeros(len(data), np.uint8)
            self.pages.read(row, 0, out)
            assert out.tobytes() == bytes(data)


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_numbers_that_cannot_be_change_nothing():
    arena = Arena(1 << 16)
    for numbers in ((0, 256, 1), (4, 256, -1), (4, 256, 1.5), (float("nan"), 256, 1), (4, float("nan"), 1)):
        with pytest.raises(UsageError):
            Pages(arena, pages=numbers[0], page_bytes=numbers[1], sequences=numbers[2])
    assert arena.figures().used_bytes == 0
    pages = Pages(arena, pages=4, page_bytes=256, sequences=2)
    row = pages.open()
    for size in (float("nan"), 1.5, "3", None, -1):
        with pytest.raises(UsageError):
            pages.extend(row, size)
    for sequence in (float("nan"), "3", None, 0.0, 7, -1):
        with pytest.raises(UsageError):
            pages.extend(sequence, 1)
    with pytest.raises(UsageError):
        pages.read(row, float("nan"), np.zeros(3, np.uint8))
    assert pages.free_pages == 4


def test_released_twice_and_used_no_more():
    arena = Arena(1 << 16)
    pages = Pages(arena, pages=4, page_bytes=256, sequences=2)
    row = pages.open()
    pages.release()
    pages.release()
    assert arena.figures().used_bytes == 0
    assert pages.open() is None
    with pytest.raises(UsageError, match="no sequence"):
        pages.extend(row, 1)
