"""Traces on their way out: a bounded queue, sent by OTLP over HTTP or gRPC, every loss counted.

The SDK's own batch processor loses spans in silence when its queue is full or its receiver away; this one is
the same with counters, and survives a fork.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from importlib import import_module
from typing import TYPE_CHECKING, Any

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.live.page import Page

__all__ = ["Outbox", "SpanOut", "grpc_place", "provider", "require"]

MOST = 8_192  # waiting: 130 kept steps of 62 spans
BATCH = 512  # of one request, as the SDK's default


class Outbox:
    """Sends items in batches from a thread of its own.

    Args:
        send: Called with a batch; True if it was taken. It may retry by itself, within bounds.
        page: Where losses are counted.
        signal: spans or logs.
        most: Items that wait; beyond, new ones are lost.
    """

    def __init__(self, send: Callable[[list[Any]], bool], page: Page, signal: str, most: int = MOST) -> None:
        self.send, self.page, self.signal, self.most = send, page, signal, most
        self.sent = 0
        self._begin()
        _boxes.add(self)

    def _begin(self) -> None:
        """Anew, also in a forked child: what waited there is the parent's to send."""
        self._items: deque[Any] = deque()
        self._change = threading.Condition()
        self._busy = self._end = False
        self._thread: threading.Thread | None = None

    def put(self, item: Any, wait_s: float = 0.0) -> None:
        """Takes an item, or counts it as lost.

        Args:
            item: What is sent.
            wait_s: Seconds to wait for room; 0 for a caller that must not wait.
        """
        with self._change:
            if wait_s:
                self._change.wait_for(lambda: len(self._items) < self.most, wait_s)
            if self._end or len(self._items) >= self.most:
                self.page.drop(self.signal, "queue_full")
                return
            self._items.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._sending, daemon=True)
                self._thread.start()
            self._change.notify_all()

    def flush(self, seconds: float = 5.0) -> bool:
        """Waits until all is sent; whether it was."""
        with self._change:
            return self._change.wait_for(lambda: not self._items and not self._busy, seconds)

    def close(self, seconds: float = 5.0) -> None:
        """Sends what waits, within this time; the rest is counted as lost."""
        self.flush(seconds)
        with self._change:
            self._end = True
            if self._items:
                self.page.drop(self.signal, "not_sent", len(self._items))
                self._items.clear()
            self._change.notify_all()

    def _sending(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._items or self._end)
                if self._end:
                    return
                batch = [self._items.popleft() for _ in range(min(BATCH, len(self._items)))]
                self._busy = True
                self._change.notify_all()
            try:
                taken = self.send(batch)
            except Exception:  # noqa: BLE001  # a broken exporter must not end the thread
                taken = False
            with self._change:
                self._busy = False
                if taken:
                    self.sent += len(batch)
                else:
                    self.page.drop(self.signal, "not_sent", len(batch))
                self._change.notify_all()


_boxes: weakref.WeakSet[Outbox] = weakref.WeakSet()


def _after_fork() -> None:
    for box in list(_boxes):
        box._begin()  # noqa: SLF001 - this module's own class


os.register_at_fork(after_in_child=_after_fork)


class SpanOut:
    """The last span processor: puts finished spans into an outbox."""

    def __init__(self, exporter: Any, page: Page, most: int = MOST) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        self.exporter = exporter
        taken = SpanExportResult.SUCCESS
        self.box = Outbox(lambda spans: exporter.export(spans) is taken, page, "spans", most)

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Nothing to do yet."""

    def _on_ending(self, span: Any) -> None:
        """Nothing to do yet."""

    def on_end(self, span: Any) -> None:
        """Takes a finished span."""
        self.box.put(span)

    def shutdown(self) -> None:
        """Sends what waits."""
        self.box.close()
        self.exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Waits until all is sent."""
        return self.box.flush(timeout_millis / 1000)


def require(*, grpc: bool = False) -> None:
    """Tells that the SDK is missing.

    Args:
        grpc: The exporter of that protocol is wanted, not that over HTTP.

    Raises:
        UsageError: it is.
    """
    name = "grpc" if grpc else "http"
    try:
        import_module("opentelemetry.sdk.trace")
        import_module(f"opentelemetry.exporter.otlp.proto.{name}.trace_exporter")
    except ImportError as why:
        extra = "live,grpc" if grpc else "live"
        raise UsageError(f"traces need OpenTelemetry's SDK with its exporter over {name}",
                         hint=f"pip install 'moexray[{extra}]'") from why  # fmt: skip


def grpc_place(url: str) -> tuple[str, bool] | None:
    """HOST:PORT of a gRPC receiver and whether it takes plain text; None: the address is of another kind."""
    scheme, _, place = url.rstrip("/").partition("://")
    return (place, scheme == "grpc") if scheme in ("grpc", "grpcs") and place else None


def provider(url: str, page: Page, service: str = "moexray") -> Any:
    """A TracerProvider that sends what it is given by OTLP and samples nothing away.

    Args:
        url: Of the receiver: http:// or https:// without /v1/traces; grpc://HOST:PORT, grpcs:// with TLS.
        page: Counts losses.
        service: service.name of the spans; the job of the metrics.

    Raises:
        UsageError: the SDK or its exporter is missing, or the address is none.
    """
    grpc = grpc_place(url)
    if grpc is None and not url.startswith(("http://", "https://")):
        raise UsageError(
            f"{url} is no address to send to", hint="e.g. http://127.0.0.1:4318 or grpc://127.0.0.1:4317"
        )
    require(grpc=grpc is not None)
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    made = TracerProvider(ALWAYS_ON, Resource.create({"service.name": service}), shutdown_on_exit=False)
    if grpc is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter: Any = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=10)
    else:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        exporter = OverGrpc(endpoint=grpc[0], insecure=grpc[1], timeout=10)
    made.add_span_processor(SpanOut(exporter, page))  # type: ignore[arg-type, unused-ignore]
    return made
