"""The messages of an exchange: short, one packet each, over a Unix socket between two ranks.

Payload never travels here, only where it lies in the shared ring:
- HELLO     who is there, and with which settings (JSON, so that versions can tell each other apart)
- VOTE      "this rank can" (empty text) or why it cannot; may carry a descriptor
- DATA      bytes up to `written` lie in the ring; `total` is what this exchange brings in all
- OFFER     `total` bytes lie at address `written` of this process, to be read from there (direct.py)
- TAKEN     `consumed` bytes of an offer were read
- REFUSED   likewise, and the rest cannot be read: the ring is to carry it
- CREDIT    bytes up to `consumed` were copied out and may be overwritten (every DATA says so too)
- ALIVE     still waiting for somebody else; keeps the blame off this rank
- ABORT     gives up, and who is at fault (JSON)
- BYE       closed on purpose
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import NamedTuple

from moexray.core.errors import ExchangeError

__all__ = ["MAX_PACKET_BYTES", "VERSION", "Kind", "Message", "pack", "pack_hello", "unpack", "unpack_hello"]

# Raise it whenever a message changes its meaning.
VERSION = 2
# Longer texts are cut: far below the smallest send buffer of a Unix socket (4,608 bytes on Linux).
MAX_PACKET_BYTES = 2048
_HEAD = struct.Struct("<BxxxIQQQQ")
_HELLO = b"moexray exchange "


class Kind(IntEnum):
    """What a message means."""

    VOTE = 1
    DATA = 2
    CREDIT = 3
    ALIVE = 4
    ABORT = 5
    BYE = 6
    OFFER = 7
    TAKEN = 8
    REFUSED = 9


_KINDS = {int(kind): kind for kind in Kind}


class Message(NamedTuple):
    """One message; which fields count depends on its kind.

    Attributes:
        kind: What it means.
        sequence: Number of the exchange, or of the vote.
        total: Bytes that this exchange brings from the sender to the reader.
        written: Bytes the sender has put into its ring since the start, padding included; an address (OFFER).
        consumed: Bytes the sender has taken out of the reader's ring since the start; or of its offer.
        crc: CRC-32 of the bytes this message announces; 0 without checksums.
        text: Reason or JSON.
    """

    kind: Kind
    sequence: int
    total: int = 0
    written: int = 0
    consumed: int = 0
    crc: int = 0
    text: bytes = b""


def pack(message: Message) -> bytes:
    """The packet of a message; a text that does not fit is cut."""
    kind, sequence, total, written, consumed, crc, text = message
    head = _HEAD.pack(kind, crc, sequence, total, written, consumed)
    return head + text[: MAX_PACKET_BYTES - _HEAD.size] if text else head


def unpack(packet: memoryview | bytes) -> Message:
    """The message in a packet.

    Raises:
        ExchangeError: too short, or of an unknown kind.
    """
    if len(packet) < _HEAD.size or packet[0] not in _KINDS:
        raise ExchangeError(
            f"malformed message of {len(packet)} bytes", hint="run the same moexray on all ranks"
        )
    kind, crc, sequence, total, written, consumed = _HEAD.unpack_from(packet)
    return Message(_KINDS[kind], sequence, total, written, consumed, crc, bytes(packet[_HEAD.size :]))


def pack_hello(fields: dict[str, object]) -> bytes:
    """The first packet on a connection.

    Raises:
        ExchangeError: the settings are too long for a packet.
    """
    packet = _HELLO + json.dumps({"version": VERSION, **fields}).encode()
    if len(packet) > MAX_PACKET_BYTES:
        raise ExchangeError(f"greeting of {len(packet)} bytes", hint="use a shorter group name")
    return packet


def unpack_hello(packet: bytes) -> dict[str, object] | None:
    """The fields of a first packet; None when a stranger sent it."""
    if not packet.startswith(_HELLO):
        return None
    try:
        fields = json.loads(packet[len(_HELLO) :])
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None
