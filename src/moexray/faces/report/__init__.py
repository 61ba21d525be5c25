"""The HTML report: one offline page from the diagnosis document."""

from moexray.faces.report.render import render

__all__ = ["render"]
