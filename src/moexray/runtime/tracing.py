"""The span of OpenTelemetry that this thread is in, asked of the host's own copy of the API.

Nothing is imported: a host that traces has the API already, any other one pays for a look into sys.modules.
"""

from __future__ import annotations

import sys

__all__ = ["current_span"]


def current_span() -> tuple[int, int] | None:
    """Trace id and span id; None outside of a span, in one that was not sampled, or without OpenTelemetry."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    try:
        context = sys.modules["opentelemetry.context"].get_current()
        if not context:
            return None
        found = api.get_current_span(context).get_span_context()
        if found.is_valid and found.trace_flags.sampled:
            return found.trace_id, found.span_id
    except Exception:  # noqa: BLE001, S110 - the host's API, of any release: recording does without it
        pass
    return None
