"""The terminal screen: figures, findings, the claim of the chosen one."""

import asyncio

import pytest

pytest.importorskip("textual", reason="the extra 'tui' is not installed")

from textual.widgets import DataTable, Static

from moexray.core.errors import UsageError
from moexray.faces.cli.top import make_top
from moexray.faces.terminal import BARS, ROWS, spark

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the allocated "
    "memory 60.00 GiB is allocated by PyTorch, and 17.00 GiB is reserved by PyTorch but unallocated.\n"
)
OPTIONS = {"attach": False, "rings": None, "every_s": 0.2, "window_s": 0.0, "ep_size": 1}


def test_a_line_of_bars_runs_from_zero_and_keeps_gaps():
    assert spark([0.0, 1.0, None, 0.5]) == BARS[1] + BARS[-1] + " " + BARS[5]
    assert spark([None, None]) == ""
    assert spark([3.0] * 100, width=7) == BARS[-1] * 7


def test_figures_findings_and_the_claim_of_the_chosen_one(tmp_path):
    (tmp_path / "server.log").write_text(OOM)

    async def look():
        app = make_top(tmp_path, OPTIONS)
        page = app.rolling.page.scope(rank=0)
        page.set("moex_expert_skew_index", 0.42, 3)
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause(1.2)
            figures = app.query_one("#figures", DataTable)
            cells = [figures.get_row_at(i) for i in range(figures.row_count)]
            findings = app.query_one("#findings", DataTable)
            first = findings.get_row_at(0)
            claim = str(app.query_one("#claim", Static).content)
            await pilot.press("q")
        return cells, first, claim

    cells, first, claim = asyncio.run(look())
    assert any(name.startswith("Expert skew index") and now == "0.42" for name, now, _ in cells)
    assert first[1].startswith("mem.")
    assert "2.00 GiB" in claim


def test_the_newest_of_many_spikes_are_kept_and_each_has_its_own_claim(tmp_path):
    async def look():
        app = make_top(tmp_path, OPTIONS)
        async with app.run_test(size=(120, 40)) as pilot:
            for line in range(ROWS + 30):
                spike = {"rank": None, "cause": "unknown", "value_s": 1.0, "source": "a.csv", "line": line}
                app.rolling._put("spike", spike)
            await pilot.pause(1.2)
            table = app.query_one("#findings", DataTable)
            told = [table.get_row_at(i)[3] for i in range(table.row_count)]
            table.move_cursor(row=7)
            await pilot.pause(0.1)
            return told, str(app.query_one("#claim", Static).content)

    told, claim = asyncio.run(look())
    assert [t.rpartition(":")[2] for t in told] == [str(line) for line in range(30, ROWS + 30)]
    assert claim == told[7]


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        make_top(tmp_path / "gone", OPTIONS)
