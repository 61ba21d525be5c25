"""From a diagnosis document to one offline HTML page.

The page loads nothing: style, scripts, data and the drawing library stand inside it, and its
Content-Security-Policy allows exactly these, by hash. Nothing is computed here; numbers get units,
long things are folded or thinned, and the page says so.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from moexray.faces.report import beside, charts, effects, graph, memory_map, tables, together, words
from moexray.faces.report.safe import clean, hash_source, script_json
from moexray.faces.report.timelines import timelines

__all__ = ["render"]

_STYLES = ("vendor/uPlot.min.css", "assets/report.css")
# Families that speak of inputs and numbers, not of the served system.
_ABOUT_ARTEFACTS = ("input", "snapshot", "smi", "trace", "metric")
_WATCH_SCRIPT = "assets/watch.js"
_SCRIPTS = (
    "vendor/uPlot.iife.min.js",
    "assets/tools.js",
    "assets/series.js",
    "assets/canvas.js",
    "assets/map.js",
    "assets/start.js",
)


def render(document: Mapping[str, Any], *, link_base: str = "") -> str:
    """Render a diagnosis document as one self-contained HTML page.

    Args:
        document: what `moexray diagnose --format json` prints, with the optional extra keys
            ledger, waits, balance, series, spans, spans_cut, memory_map, chain, ruled_out, seen,
            gaps and whatif. Sizes in bytes, times in seconds. Missing, null or odd values leave
            their place empty, they never fail.
        link_base: the folder that relative evidence paths start from, as seen from the place
            where the page will lie; "" when they start from there.

    Returns:
        The HTML text; write it as UTF-8.
    """
    found = words.findings(document, "findings", "f", link_base)
    ruled_out = words.findings(document, "ruled_out", "r", link_base)
    anchors: dict[str, str] = {}
    for finding in (*found, *ruled_out):
        anchors.setdefault(finding.id, finding.anchor)
    bills, bill_table = tables.ledger(document)
    lanes = timelines(document)
    series = charts.series(together.joined(document), anchors)
    balances = charts.balances(document)
    maps = memory_map.maps(document)
    data = {
        "timelines": [chart.data for chart in lanes],
        "series": [chart.data for chart in series],
        "balances": [chart.data for chart in balances],
        "maps": [chart.data for chart in maps],
    }
    styles = tuple(_asset(name) for name in _STYLES)
    scripts = tuple(_asset(name) for name in _SCRIPTS)
    return _template().render(
        policy=_policy((_asset(_WATCH_SCRIPT), *scripts), styles),
        styles=_trusted(styles),
        watch=Markup(_asset(_WATCH_SCRIPT)),  # noqa: S704 (our own file)
        scripts=_trusted(scripts),
        data=Markup(script_json(data)),  # noqa: S704 (every < > & ' is escaped)
        schema=clean(document.get("schema")),
        verdict=found[0] if found else None,
        others=_other_causes(found),
        findings=found,
        ruled_out=ruled_out,
        seen=words.sights(document, link_base),
        anchors=anchors,
        graph=graph.graph(document),
        effects=effects.effects(document),
        gaps=beside.gaps(document),
        trials=beside.trials(document),
        bills=bills,
        bill_table=bill_table,
        timelines=lanes,
        series=series,
        balances=balances,
        maps=maps,
        waits=tables.waits(document),
        inputs=tables.inputs(document),
        skipped=tables.skipped(document),
    )


def _other_causes(found: tuple[words.Finding, ...]) -> list[words.Finding]:
    """Give the findings beside the first that are faults of the system without a known cause."""
    return [
        finding
        for finding in found[1:]
        if not finding.causes
        and not finding.cannot_tell
        and finding.severity != "info"
        and finding.id.split(".")[0] not in _ABOUT_ARTEFACTS
    ]


def _policy(scripts: tuple[str, ...], styles: tuple[str, ...]) -> str:
    """Give the Content-Security-Policy that allows these inline texts and nothing else."""
    return (
        "default-src 'none'; "
        f"script-src {' '.join(hash_source(text) for text in scripts)}; "
        f"style-src {' '.join(hash_source(text) for text in styles)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _trusted(texts: tuple[str, ...]) -> list[Markup]:
    return [Markup(text) for text in texts]  # noqa: S704 (our own files and the vendored one)


@cache
def _asset(name: str) -> str:
    """Give the text of a file of this package, read once."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FunctionLoader(lambda name: _asset(f"templates/{name}"))
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")
