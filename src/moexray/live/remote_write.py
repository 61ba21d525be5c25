"""Prometheus remote write 1.0: the page's samples as protobuf, compressed, sent with retries.

What a receiver calls wrong (3xx, 4xx but 429) is dropped and counted, never sent again; what may pass later
(429, 5xx, no connection) is sent again with growing pauses. The queue is bounded: while a receiver is away
the oldest requests fall out and are counted.

Source: Prometheus remote-write specification 1.0; messages by their field numbers.
"""

from __future__ import annotations

import logging
import random
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from moexray import __version__
from moexray.core.errors import UsageError
from moexray.core.redact import redact
from moexray.live.post import post

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moexray.live.page import Page, Sample
    from moexray.live.post import Answer

__all__ = ["RemoteWrite", "Settings", "encode"]

BATCH = 2_000  # samples of a request, as Prometheus' own senders do
# Prometheus marks a series that ended by this NaN and no other (model/value of its source).
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]

Labels = tuple[tuple[str, str], ...]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to send.

    Args:
        url: Receiver, e.g. http://host:9090/api/v1/write.
        interval_s: Seconds between two samples of the page.
        queue: Requests kept while the receiver is away: at 10 s and one request each, ten minutes.
        first_pause_s: Before the first repetition; doubles up to `longest_pause_s`.
        longest_pause_s: Most seconds between two tries.
        timeout_s: Of one request.
        token: Sent as `Authorization: Bearer`; empty for none.
        labels: Added to every series: what a scraper would add by itself.
    """

    url: str
    interval_s: float = 10.0
    queue: int = 60
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    timeout_s: float = 10.0
    token: str = ""
    labels: Labels = ()


def encode(
    samples: Iterable[Sample], time_ms: int, gone: Iterable[Labels] = (), extra: Labels = ()
) -> bytes:
    """A compressed WriteRequest.

    Args:
        samples: Values at `time_ms`.
        time_ms: Epoch milliseconds.
        gone: Label sets, `__name__` included, whose series end here.
        extra: Labels added to every series.

    Raises:
        UsageError: the libraries of the extra `live` are missing.
    """
    try:
        import cramjam
    except ImportError as why:
        hint = "pip install 'moexray[live]'"
        raise UsageError("remote write needs cramjam and protobuf", hint=hint) from why
    request = _messages()()
    for sample in samples:
        series = request.timeseries.add()
        _label(series, (("__name__", sample.name), *sample.labels, *extra))
        series.samples.add(value=sample.value, timestamp=time_ms)
        if mark := sample.exemplar:
            one = series.exemplars.add(value=mark.value, timestamp=int(mark.time_s * 1000))
            one.labels.add(name="trace_id", value=mark.trace_id)
    for labels in gone:
        series = request.timeseries.add()
        _label(series, (*labels, *extra))
        series.samples.add(value=STALE, timestamp=time_ms)
    return bytes(cramjam.snappy.compress_raw(request.SerializeToString()))


def _label(series: Any, labels: Iterable[tuple[str, str]]) -> None:
    for name, value in sorted(labels):  # the protocol wants them sorted
        series.labels.add(name=name, value=value)


@cache
def _messages() -> Any:
    """The class WriteRequest, made from field numbers (an own pool: other libraries may declare it, too)."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kind = descriptor_pb2.FieldDescriptorProto
    text, real, whole, inner = kind.TYPE_STRING, kind.TYPE_DOUBLE, kind.TYPE_INT64, kind.TYPE_MESSAGE
    plan: dict[str, Sequence[tuple[str, int, Any, str]]] = {
        "Label": (("name", 1, text, ""), ("value", 2, text, "")),
        "Sample": (("value", 1, real, ""), ("timestamp", 2, whole, "")),
        "Exemplar": (("labels", 1, inner, "Label"), ("value", 2, real, ""), ("timestamp", 3, whole, "")),
        "TimeSeries": (
            ("labels", 1, inner, "Label"), ("samples", 2, inner, "Sample"),
            ("exemplars", 3, inner, "Exemplar"),
        ),
        "WriteRequest": (("timeseries", 1, inner, "TimeSeries"),),
    }  # fmt: skip
    file = descriptor_pb2.FileDescriptorProto(name="moexray_write.proto", package="moexray", syntax="proto3")
    for name, fields in plan.items():
        message = file.message_type.add(name=name)
        for field, number, type_, of in fields:
            label = kind.LABEL_REPEATED if of else kind.LABEL_OPTIONAL
            message.field.add(
                name=field, number=number, type=type_, label=label, type_name=f".moexray.{of}" if of else None
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("moexray.WriteRequest"))


class RemoteWrite:
    """Sends the page every `interval_s` seconds, from `start` to `close`.

    Args:
        page: What is sent; what is lost is counted there as `moex_exporter_dropped_total{signal="samples"}`.
        settings: Where and how.

    Raises:
        UsageError: the address is not of the web.
    """

    def __init__(self, page: Page, settings: Settings) -> None:
        if not settings.url.startswith(("http://", "https://")):
            raise UsageError(f"{settings.url} is no address to send to",
                             hint="e.g. http://127.0.0.1:9090/api/v1/write")  # fmt: skip
        self.page, self.settings = page, settings
        self.sent = 0  # samples that were taken
        self._queue: deque[tuple[bytes, int]] = deque()
        self._busy = False  # a request is on its way
        self._ready = threading.Condition()
        self._end = threading.Event()
        self._last: set[Labels] = set()
        self._threads = [threading.Thread(target=f, daemon=True) for f in (self._sampling, self._sending)]

    def start(self) -> None:
        """Begins to sample and to send."""
        encode((), 0)  # a missing library is told now
        for thread in self._threads:
            thread.start()

    def close(self, wait_s: float = 2.0) -> None:
        """Ends; what the receiver has not taken within `wait_s` is counted as lost."""
        deadline = time.monotonic() + wait_s
        while (self._queue or self._busy) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._end.set()
        with self._ready:
            self._ready.notify_all()
        for thread in self._threads:
            thread.join(self.settings.timeout_s + 1)
        for _, count in self._queue:
            self.page.drop("samples", "closed", count)

    def sample(self) -> None:
        """Puts the page as it stands into the queue; the oldest requests make room."""
        now_ms = time.time_ns() // 1_000_000
        samples = self.page.samples()
        names = {(("__name__", s.name), *s.labels) for s in samples}
        gone = list(self._last - names)
        self._last = names
        for start in range(0, len(samples), BATCH):
            part = samples[start : start + BATCH]
            self._put(encode(part, now_ms, gone, self.settings.labels), len(part))
            gone = []

    def _put(self, body: bytes, count: int) -> None:
        with self._ready:
            if len(self._queue) >= self.settings.queue:
                self.page.drop("samples", "queue_full", self._queue.popleft()[1])
            self._queue.append((body, count))
            self._ready.notify_all()

    def _sampling(self) -> None:
        while not self._end.wait(self.settings.interval_s):
            try:
                self.sample()
            except Exception:  # noqa: BLE001  # a bug of ours costs one sample of the page, not all to come
                _log.exception("a sample of the page failed; please report this")
                self.page.drop("updates", "failed")

    def _sending(self) -> None:
        while not self._end.is_set():
            with self._ready:
                self._ready.wait_for(lambda: self._queue or self._end.is_set())
                if self._end.is_set():
                    return
                item = self._queue.popleft()
                self._busy = True
            self._deliver(item)
            self._busy = False

    def _deliver(self, item: tuple[bytes, int]) -> None:
        """Sends one request until it is taken, refused, or pushed out by younger ones."""
        pause = self.settings.first_pause_s
        body, count = item
        while True:
            answer = self._post(body)
            if answer.is_taken:
                self.sent += count
                return
            if not answer.may_pass_later:
                self.page.drop("samples", "refused", count)
                return
            with self._ready:
                if len(self._queue) >= self.settings.queue:
                    self.page.drop("samples", "queue_full", count)
                    return
            # a little chance, so that many exporters do not come back at one moment
            asked_s = min(answer.after_s, self.settings.longest_pause_s)
            if self._end.wait(max(asked_s, pause * random.uniform(0.8, 1.2))):  # noqa: S311
                self.page.drop("samples", "closed", count)
                return
            pause = min(2 * pause, self.settings.longest_pause_s)

    def _post(self, body: bytes) -> Answer:
        headers = {
            "Content-Type": "application/x-protobuf", "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0", "User-Agent": f"moexray/{__version__}",
        }  # fmt: skip
        settings = self.settings
        answer = post(settings.url, body, headers, token=settings.token, timeout_s=settings.timeout_s)
        if not answer.is_taken:
            told = f"answers {answer.status}" if answer.status else "does not answer"
            _log.warning("remote write: %s %s: %s", redact(settings.url), told, answer.text[:300].strip())
        return answer
