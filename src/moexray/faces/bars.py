"""A picture of stacked bars as one SVG file, drawn without a library; for files beside a table."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from moexray.faces.plain import visible

__all__ = ["Bar", "picture"]

WIDTH, LEFT, RIGHT, ROW, TOP = 960, 170, 210, 30, 96  # pixels
COLOURS = ("#3b6fb6", "#e0a030", "#c9ced6", "#8fb98f")  # told apart without colour by their order, too


@dataclass(frozen=True, slots=True)
class Bar:
    """One row.

    Args:
        name: Left of the bar.
        parts: One value for each legend entry, stacked in this order; at least 0.
        text: Right of the bar.
    """

    name: str
    parts: tuple[float, ...]
    text: str


def picture(title: str, legend: tuple[str, ...], bars: list[Bar], mark: tuple[float, str]) -> str:
    """Draws bars from the same zero, with a vertical line.

    Args:
        title: Above everything.
        legend: What the parts are.
        bars: From top to bottom.
        mark: Where the line stands, in the unit of the parts, and its words.

    Returns:
        An SVG document; bars keep their proportions, nothing is cut.
    """
    most = max([sum(b.parts) for b in bars] + [mark[0], 1e-12])
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + ROW * len(bars) + 24
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif" font-size="13">',
        f"<title>{_safe(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{_safe(title)}</text>',
    ]
    at = 16
    for name, colour in zip(legend, COLOURS, strict=False):
        out.append(f'<rect x="{at}" y="42" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{at + 18}" y="53">{_safe(name)}</text>')
        at += 40 + 7 * len(name)
    x = LEFT + mark[0] * scale
    for row, bar in enumerate(bars):
        y, at_x = TOP + ROW * row, float(LEFT)
        out.append(f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{_safe(bar.name)}</text>')
        for value, colour in zip(bar.parts, COLOURS, strict=False):
            width = value * scale
            box = f'x="{at_x:.1f}" y="{y}" width="{width:.1f}" height="20"'
            out.append(f'<rect {box} fill="{colour}"/>')
            at_x += width
        out.append(f'<text x="{at_x + 8:.1f}" y="{y + 15}">{_safe(bar.text)}</text>')
    end = TOP + ROW * len(bars)
    ends = f'x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{end}"'
    out.append(f'<line {ends} stroke="#222" stroke-dasharray="4 3"/>')
    out.append(f'<text x="{x:.1f}" y="{TOP - 14}" text-anchor="middle">{_safe(mark[1])}</text>')
    return "\n".join([*out, "</svg>", ""])


def _safe(text: str) -> str:
    return escape(visible(text))
