"""The terminal screen of `moexray top`: figures with a line of their last minutes, spikes, findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App
from textual.widgets import DataTable, Footer, Header, Static

from moexray.faces.numbers import human
from moexray.faces.plain import visible
from moexray.live.rolling import CHARTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from moexray.live.rolling import Event, Rolling

__all__ = ["Top", "spark"]

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 60  # of the line of a figure: the last minute
ROWS = 200  # spikes and findings that are kept, the newest


def spark(values: list[float | None], width: int = WIDTH) -> str:
    """The last values as a line of bars, from 0 or their least up; a gap where one is missing."""
    shown = values[-width:]
    known = [v for v in shown if v is not None]
    if not known:
        return ""
    low, high = min(0.0, *known), max(known)
    span = (high - low) or 1.0
    return "".join(" " if v is None else BARS[1 + round((v - low) / span * (len(BARS) - 2))] for v in shown)


class Top(App[None]):
    """The application.

    Args:
        rolling: What is shown; a point is taken once a second.
        title: What is watched.
        close: Called at the end.
    """

    TITLE = "moexray"
    BINDINGS: ClassVar = [("q", "quit", "Quit")]
    CSS = """
    #figures { height: auto; max-height: 50%; }
    #findings { height: 1fr; }
    #claim { height: auto; max-height: 8; padding: 0 1; border-top: solid $primary; }
    """

    def __init__(self, rolling: Rolling, title: str, close: Callable[[], None]) -> None:
        super().__init__()
        self.rolling, self.sub_title, self._close = rolling, visible(title), close
        self._seen = 0
        self._points: list[dict[str, Any]] = []
        self._claims: dict[str | None, str] = {}  # by the key of its row, oldest first

    def compose(self) -> ComposeResult:
        """The parts, from top to bottom."""
        yield Header()
        yield DataTable(id="figures", show_cursor=False)
        yield DataTable(id="findings", cursor_type="row")
        yield Static("Nothing found yet.", id="claim", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Columns, and the clock of the screen."""
        self.query_one("#figures", DataTable).add_columns("figure", "now", "last minute")
        self.query_one("#findings", DataTable).add_columns("kind", "what", "rank", "told")
        self.query_one("#findings", DataTable).focus()
        self.set_interval(1.0, self.tick)
        self.tick()

    def on_unmount(self) -> None:
        """Ends the reading of sources."""
        self._close()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The claim of the chosen finding in full."""
        if event.data_table.id == "findings" and event.row_key.value in self._claims:
            self.query_one("#claim", Static).update(self._claims[event.row_key.value])

    def tick(self) -> None:
        """Takes a point and shows what is new."""
        self.rolling.sample()
        for event in self.rolling.since(self._seen):
            self._seen = event.seq
            if event.kind == "point":
                self._points = [*self._points[-WIDTH:], event.data]
            else:
                self._told(event)
        figures = self.query_one("#figures", DataTable)
        figures.clear()
        for chart in CHARTS:
            for key, label in chart.lines:
                values = [p[key] for p in self._points]
                if any(v is not None for v in values):
                    name = f"{chart.name.split(',')[0]}: {label}"
                    figures.add_row(name, human(values[-1], chart.unit), spark(values))

    def _told(self, event: Event) -> None:
        table, data = self.query_one("#findings", DataTable), event.data
        rank = "" if data["rank"] is None else str(data["rank"])
        if event.kind == "spike":
            what, claim = data["cause"], f"{human(data['value_s'], 's')} at {data['source']}:{data['line']}"
        else:
            what, claim = data["id"], data["claim"]
        claim = visible(claim)
        key = str(event.seq)
        self._claims[key] = claim
        kind = "spike" if event.kind == "spike" else data["severity"]
        table.add_row(kind, visible(what), rank, claim[:200], key=key)
        if len(self._claims) > ROWS:
            oldest = next(iter(self._claims))
            del self._claims[oldest]
            table.remove_row(str(oldest))
