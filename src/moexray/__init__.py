"""An X-ray for Mixture-of-Experts inference: what broke, with evidence, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.version import __version__

if TYPE_CHECKING:
    from moexray.runtime.attach import Recording

__all__ = ["__version__", "attach"]


def attach(model: Any, **options: Any) -> Recording:
    """Records what a model routes, in the process that runs it; see `moexray.runtime.attach`."""
    from moexray.runtime.attach import attach as begin

    return begin(model, **options)
