"""The HTML of the live page: scripts and styles of the report and its own, all inline, allowed by hash."""

from __future__ import annotations

import html
import re
from functools import cache
from importlib import resources

from moexray.faces.report.safe import hash_source, script_json
from moexray.live.rolling import CHARTS

__all__ = ["page_policy", "page_text"]

_PLACE = re.compile(r"\{\{ (title|styles|charts|scripts) \}\}")
_REPORT = ("vendor/uPlot.min.css", "assets/report.css")
_STYLES = (*(("moexray.faces.report", name) for name in _REPORT), ("moexray.faces.web", "assets/live.css"))
_SCRIPTS = (
    ("moexray.faces.report", "vendor/uPlot.iife.min.js"),
    ("moexray.faces.report", "assets/tools.js"),
    ("moexray.faces.report", "assets/series.js"),
    ("moexray.faces.web", "assets/live.js"),
)


def page_text(title: str) -> str:
    """The page; `title` says what is watched."""
    charts = [
        {"name": c.name, "unit": c.unit, "lines": [{"key": k, "label": label} for k, label in c.lines]}
        for c in CHARTS
    ]
    styles = "\n".join(f"<style>{_text(*one)}</style>" for one in _STYLES)
    scripts = "\n".join(f"<script>{_text(*one)}</script>" for one in _SCRIPTS)
    body = _text("moexray.faces.web", "assets/live.html")
    parts = {
        "title": html.escape(title), "styles": styles, "charts": script_json(charts), "scripts": scripts,
    }  # fmt: skip
    return _PLACE.sub(lambda hit: parts[hit[1]], body)  # once: what is put in is not looked at again


@cache
def page_policy() -> str:
    """The Content-Security-Policy: these scripts and styles, a stream from here, nothing else."""
    scripts = " ".join(hash_source(_text(*one)) for one in _SCRIPTS)
    styles = " ".join(hash_source(_text(*one)) for one in _STYLES)
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@cache
def _text(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
