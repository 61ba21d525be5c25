"""The Python API: light to import, frames and HTML, hostile text shown and not obeyed, docs/api.md run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import moexray
from moexray.faces import notebook

ROOT = Path(__file__).resolve().parents[2]
INCIDENT = ROOT / "examples" / "incident"


@pytest.fixture(scope="module")
def run():
    return moexray.read(INCIDENT)


def test_at_most_15_public_names_and_all_of_them_lead_somewhere():
    assert len(moexray.__all__) <= 15
    assert dir(moexray) == sorted(moexray.__all__)
    for name in moexray.__all__:
        assert getattr(moexray, name) is not None
    assert set(notebook.__all__) == set(moexray.__all__) - {"__version__", "attach"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = moexray.nothing


@pytest.mark.parametrize(
    "first",
    ["import moexray", "import moexray.diagnose", "from moexray.diagnose import engine", "import moexray.whatif.allocator"],
)
def test_the_two_packages_can_be_called_whatever_was_imported_first(first):
    code = (
        f"{first}\nimport sys, moexray\n"
        "assert callable(moexray.diagnose) and callable(moexray.whatif)\n"
        "import moexray.diagnose.engine as engine\nassert engine.diagnose\n"
        "try: moexray.whatif('x', 'tea')\n"
        "except moexray.MoexrayError as why: assert 'no what-if' in why.what\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_import_is_light():
    code = "import sys, moexray; print([m for m in ('polars', 'numpy', 'numba', 'click', 'jinja2') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_tables_are_frames(run):
    assert "oom" in run.tables
    assert isinstance(run.tables["gpu"], pl.DataFrame)
    assert len(run.tables) == len(list(run.tables))
    assert run.tables["collectives"].is_empty() if "collectives" in run.tables else True
    with pytest.raises(KeyError, match="no such table"):
        run.tables["nonsense"]
    assert run.inputs.columns == ["path", "reader", "rows", "note"]
    assert "files read" in repr(run)


def test_a_diagnosis_is_the_commands(run, tmp_path):
    found = moexray.diagnose(run)
    assert found.verdict == moexray.diagnose(INCIDENT).verdict == found.to_json()["verdict"]
    assert found.frame["id"].to_list() == [f.id for f in found.findings]
    assert found.frame["value"].dtype == pl.Float64
    assert "verdict" in repr(found)
    page = found.report(tmp_path / "report.html")
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(moexray.MoexrayError, match="exists"):
        found.report(page)


def test_a_cell_shows_findings_and_obeys_nothing(tmp_path):
    evil = "<script>alert(1)</script>\x1b[31m"
    file = tmp_path / "server.log"
    file.write_text(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        f"79.15 GiB of which 1.00 GiB is free. {evil}\n"
    )
    found = moexray.diagnose(file)
    html = found._repr_html_()
    assert found.verdict in html
    assert "<script" not in html
    assert "\x1b" not in html
    odd = tmp_path / "<img src=x onerror=y>.txt"
    odd.write_text("nothing")
    shown = moexray.read(odd)._repr_html_()
    assert "<img" not in shown
    assert "&lt;img" in shown
    assert "no verdict" in moexray.diagnose(odd)._repr_html_()


def test_what_if_gives_frames(run):
    placed = moexray.whatif(INCIDENT / "routing", "placement", gpus=4)
    assert placed.frame.columns == ["layer", "balancedness", "bound", "trivial", "slots"]
    assert "planned" in repr(placed)
    assert "<b>balancedness" in placed._repr_html_()
    for kind, options, told in (
        ("placement", {}, "missing a required argument: 'gpus'"),
        ("memory", {"tea": 1}, "unexpected keyword argument 'tea'"),
        ("tea", {}, "no what-if 'tea'"),
    ):
        with pytest.raises(moexray.MoexrayError, match=told):
            moexray.whatif(run, kind, **options)


def test_comparisons_and_budgets(run, tmp_path):
    compared = moexray.compare(run, run)
    assert {"figure", "before", "before_low", "difference_high", "ratio", "verdict"} <= set(compared.frame.columns)
    budget = tmp_path / "budget.toml"
    budget.write_text("[fragmentation]\nmax_ratio = 0.01\n")
    checked = moexray.check(run, budget)
    assert checked.headline == "the budget is broken"
    assert checked.frame["status"].to_list() == ["fail"] * len(checked.frame)


def test_nothing_to_read():
    with pytest.raises(moexray.MoexrayError, match="nothing to read"):
        moexray.read()
    with pytest.raises(moexray.MoexrayError, match="does not exist"):
        moexray.read(["gone", "lost"])


def test_every_example_of_the_page_runs(tmp_path, monkeypatch):
    shutil.copytree(INCIDENT, tmp_path / "incident")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 5
    scope = {}
    for block in blocks:
        exec(compile(block, "docs/api.md", "exec"), scope)
    assert scope["found"].verdict == "mem.fragmentation"
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("given", [None, 5, b"evil", [5], {}, {"a": 1}, "", "a\0b", "x" * 5000, "nowhere", [None], "s3://x/y"])
@pytest.mark.parametrize("function", [moexray.read, moexray.diagnose, moexray.whatif])
def test_what_is_no_path_is_named(function, given):
    with pytest.raises(moexray.MoexrayError, match=r"is no path|does not exist|is empty|nothing to read"):
        function(given)


@pytest.mark.parametrize("bad", [0, -4, "4", 2.5, float("nan"), float("inf"), True])
@pytest.mark.parametrize(("kind", "name"), [("placement", "gpus"), ("placement", "slots"), ("memory", "capacity")])
def test_what_is_no_count_is_named(run, kind, name, bad):
    needed = {"gpus": 4} if kind == "placement" else {}
    with pytest.raises(moexray.MoexrayError, match=f"{name} is "):
        moexray.whatif(run, kind, **{**needed, name: bad})


def test_one_setting_needs_no_list_and_a_margin_no_quotes(run):
    [row] = moexray.whatif(run, confs="expandable_segments:True", capacity=80e9).frame.filter(~pl.col("recorded")).to_dicts()
    assert row["conf"] == "expandable_segments:True"
    with pytest.raises(moexray.MoexrayError, match="neither a time nor a share"):
        moexray.compare(run, run, margin=0.05)


def test_columns_do_not_depend_on_what_was_found(run, tmp_path):
    empty = moexray.diagnose(tmp_path)
    assert empty.frame.schema == moexray.diagnose(run).frame.schema
    assert moexray.read(tmp_path).inputs.schema == run.inputs.schema
    assert "could be used" in empty._repr_html_()


def test_the_report_of_a_notebook_is_the_commands(tmp_path):
    from click.testing import CliRunner

    from moexray.faces.cli.main import main

    CliRunner().invoke(main, ["diagnose", str(INCIDENT), "--report", str(tmp_path / "a.html"), "--no-redact"])
    moexray.diagnose(INCIDENT).report(tmp_path / "b.html")
    links = [sorted(set(re.findall(r'class="where" href="([^"]+)"', (tmp_path / n).read_text()))) for n in ("a.html", "b.html")]
    assert links[0] == links[1]
    assert all((tmp_path / link).exists() for link in links[1])
    assert 'id="trials"' in (tmp_path / "b.html").read_text()
