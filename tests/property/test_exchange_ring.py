"""The ring against a plain queue; messages survive packing; nothing hostile passes."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moexray.core.errors import ExchangeError
from moexray.runtime.exchange.ring import ALIGNMENT_BYTES, Ring
from moexray.runtime.exchange.wire import (
    MAX_PACKET_BYTES,
    VERSION,
    Kind,
    Message,
    pack,
    pack_hello,
    unpack,
    unpack_hello,
)

CAPACITY = 256
steps = st.lists(
    st.tuples(st.sampled_from(["put", "announce", "take", "credit", "pad"]), st.integers(0, 2**32)), max_size=120
)


class NaiveStream:
    """A queue of bytes; what was announced, and what the writer knows of the reader."""

    def __init__(self):
        self.queue, self.announced, self.uncredited = deque(), 0, 0


@given(steps)
def test_ring_is_a_queue(script):
    memory = memoryview(bytearray(CAPACITY))
    writer, reader, naive, tick = Ring(memory), Ring(memory.toreadonly()), NaiveStream(), 0
    for what, number in script:
        if what == "put":
            size = number % (writer.free() + 1)
            data = bytes((tick + i) % 251 for i in range(size))
            tick += size
            writer.put(memoryview(data))
            naive.queue.extend(data)
        elif what == "announce":
            new = len(naive.queue) - naive.announced
            assert reader.announce(writer.written) == new
            assert reader.crc(new) == writer.crc(new)
            naive.announced = len(naive.queue)
        elif what == "take":
            assert reader.held() == naive.announced
            into = bytearray(number % (naive.announced + 1))
            reader.take(memoryview(into))
            assert list(into) == [naive.queue.popleft() for _ in into]
            naive.announced -= len(into)
            naive.uncredited += len(into)
        elif what == "credit":
            writer.credit(reader.consumed)
            naive.uncredited = 0
        elif not naive.queue:
            # The end of an exchange: everything was taken out, both sides skip to a cache line.
            writer.pad_writer()
            reader.pad_reader()
            assert writer.written == reader.written == reader.consumed
            assert writer.written % ALIGNMENT_BYTES == 0
        assert 0 <= writer.free() <= CAPACITY - len(naive.queue)
        assert 0 <= reader.held() <= CAPACITY


@given(st.integers(0, 4 * CAPACITY), st.integers(0, 4 * CAPACITY), st.integers(0, 2**64 - 1))
def test_cursors_that_cannot_be_are_refused(written, consumed, told):
    ring = Ring(memoryview(bytearray(CAPACITY)))
    ring.consumed = min(written, consumed)
    ring.written = min(written, ring.consumed + CAPACITY)
    before = ring.written, ring.consumed
    if not before[0] <= told <= before[1] + CAPACITY:
        with pytest.raises(ExchangeError, match="write cursor"):
            ring.announce(told)
    if not before[1] <= told <= before[0]:
        with pytest.raises(ExchangeError, match="read cursor"):
            ring.credit(told)
    assert (ring.written, ring.consumed) == before


numbers = st.integers(0, 2**64 - 1)


@given(
    st.builds(
        Message, st.sampled_from(Kind), numbers, numbers, numbers, numbers, st.integers(0, 2**32 - 1),
        st.binary(max_size=3000),
    )
)
def test_messages_survive_the_way_with_long_texts_cut(message):
    packet = pack(message)
    assert len(packet) <= MAX_PACKET_BYTES
    back = unpack(packet)
    assert back[:-1] == message[:-1]
    assert message.text.startswith(back.text)
    assert back.text == message.text or len(packet) == MAX_PACKET_BYTES


@given(st.binary(max_size=200))
def test_any_packet_is_a_message_or_refused(packet):
    if len(packet) < len(pack(Message(Kind.BYE, 0))) or packet[0] not in set(Kind):
        with pytest.raises(ExchangeError, match="malformed message"):
            unpack(packet)
    else:
        assert pack(unpack(packet))[4:] == packet[4:]
    fields = unpack_hello(b"moexray exchange " + packet)
    assert fields is None or isinstance(fields, dict)


@given(st.dictionaries(st.text(max_size=8), st.integers(), max_size=4))
def test_greetings_survive_the_way(fields):
    fields.pop("version", None)
    assert unpack_hello(pack_hello(fields)) == {"version": VERSION, **fields}


def test_greetings_are_short_and_strangers_are_none():
    with pytest.raises(ExchangeError, match="greeting of"):
        pack_hello({"group": "x" * MAX_PACKET_BYTES})
    assert unpack_hello(b"GET / HTTP/1.1") is None
    assert unpack_hello(b"moexray exchange " + b"[" * 2000) is None
