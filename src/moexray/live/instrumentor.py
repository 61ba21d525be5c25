"""The entry point `opentelemetry_instrumentor`: `opentelemetry-instrument` loads it with the other libraries.

It puts `Tail` before the processors that the program's TracerProvider has, so that spans of every
instrumented library are enriched, counted and sampled by their end. Settings come from the environment, as
with all auto-instrumentation:

    MOEXRAY_KEEP_RATIO   share of all traces kept in any case (0.01)
    MOEXRAY_SLO_S        seconds above which a trace is kept (none)
    MOEXRAY_RULES        YAML file of enrichment rules (none)
    MOEXRAY_LISTEN       HOST:PORT of the metrics that are derived from spans (none)
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from moexray.core.errors import MoexrayError, UsageError
from moexray.live.enrich import read_rules
from moexray.live.exporter import Exporter
from moexray.live.page import Page
from moexray.live.sampling import Decider, Keep
from moexray.live.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["MoexrayInstrumentor"]

RATIO = 0.01

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Installed:
    multi: Any
    found: tuple[Any, ...]
    page: Page
    exporter: Exporter | None


_installed: list[_Installed] = []  # one a process, whichever object put it there


class MoexrayInstrumentor:
    """What `opentelemetry-instrument` calls: the interface of its BaseInstrumentor."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing must be there but the SDK."""
        return ("opentelemetry-sdk >= 1.40",)

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether it stands in the way of the spans."""
        return bool(_installed)

    @property
    def page(self) -> Page | None:
        """What was derived from spans; None while nothing is instrumented."""
        return _installed[0].page if _installed else None

    def instrument(self, **kwargs: Any) -> None:
        """Puts `Tail` before the processors of the provider; says why where it cannot, and changes nothing.

        Args:
            kwargs: `tracer_provider`, else the global one is taken.
        """
        if _installed:
            return
        try:
            _installed.append(_install(kwargs.get("tracer_provider")))
        except MoexrayError as why:  # the host goes on without us
            _log.warning("moexray does not instrument: %s", why)

    def uninstrument(self, **_: Any) -> None:
        """Puts the very processors back."""
        if _installed:
            mine = _installed.pop()
            mine.multi._span_processors = mine.found  # noqa: SLF001
            if mine.exporter:
                mine.exporter.close()


def _install(provider: Any) -> _Installed:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import SynchronousMultiSpanProcessor

    provider = provider or trace.get_tracer_provider()
    multi = getattr(provider, "_active_span_processor", None)
    found = getattr(multi, "_span_processors", None)
    if not isinstance(multi, SynchronousMultiSpanProcessor) or not isinstance(found, tuple):
        raise UsageError("the tracer provider is none of the OpenTelemetry SDK, or of an unknown release")
    keep = Keep(ratio=_number("MOEXRAY_KEEP_RATIO", RATIO), slo_s=_number("MOEXRAY_SLO_S", 0.0))
    rules = os.environ.get("MOEXRAY_RULES")
    page = Page()
    then: Any = cast("Any", SynchronousMultiSpanProcessor)()
    for processor in found:
        then.add_span_processor(processor)
    tail = Tail(then, page, Decider(keep), read_rules(Path(rules)) if rules else None)
    listen = os.environ.get("MOEXRAY_LISTEN")
    exporter = Exporter(page, [], listen=listen) if listen else None
    if exporter:
        exporter.start()
    # in place: tracers that exist already hold this object
    multi._span_processors = cast("Any", (tail,))  # noqa: SLF001
    return _Installed(multi, found, page, exporter)


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        return float(text) if text else default
    except ValueError as why:
        raise UsageError(f"{name}={text} is no number") from why
