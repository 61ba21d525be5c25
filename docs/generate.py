"""Writes docs/tables.md, docs/verdicts.md, docs/metrics.md and docs/commands.md from the code.

Run: python docs/generate.py [FOLDER]; a test compares the result with what is committed.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from click.testing import CliRunner

from moexray.core.tables import TABLES
from moexray.core.verdicts import VERDICTS
from moexray.faces.cli.explain import calls
from moexray.faces.cli.main import COMMANDS, main
from moexray.live.metrics import METRICS, SCOPE

NOTE = "<!-- made by docs/generate.py; edit the code instead -->\n"

READING = """\
- **decided**: the rule that must hold, with its default limits (`--limits` overrides them).
- **refuted**: what speaks against it; then it is not said, or told as ruled out.
- **do**: what to change. The diagnosis gives the setting and how to undo it.
- **needs**: the artefact that decides; [capture.md](capture.md) says how to take it.
- **call**: a remedy inside the engine's process, where there is one: what must hold **first**, what to
  **mind**, how to **verify** that it helped, how to **undo** it.

Families:
"""


def tables() -> str:
    """Every table with its columns, units and meaning."""
    out = [NOTE, "# Tables\n", "What the readers fill and the rules read. Unknown is null, never 0.",
           "`moexray inspect PATH` says which of them your files fill; `--save` writes them as Parquet.\n",
           ", ".join(f"[{t.name}](#{t.name})" for t in TABLES) + "\n"]
    for table in TABLES:
        out += [f"## {table.name}\n", f"{table.doc}\n"]
        out += ["| column | type | unit | meaning |", "|---|---|---|---|"]
        out += [f"| {c.name} | {c.kind} | {c.unit or '-'} | {_cell(c.doc)} |" for c in table.columns]
        out.append("")
    return "\n".join(out)


def verdicts() -> str:
    """Every verdict: what it means, how it is decided, what refutes it, what to do."""
    out = [NOTE, "# Verdicts\n", "What `moexray diagnose` may say; `moexray explain ID` prints the same.\n"]
    out.append(READING)
    families = dict.fromkeys(v.id.partition(".")[0] for v in VERDICTS)
    for family in families:
        names = [v.id for v in VERDICTS if v.id.startswith(f"{family}.")]
        links = ", ".join(f"[{n.partition('.')[2]}](#{n.replace('.', '')})" for n in names)
        out.append(f"- **{family}**: {links}")
    out.append("")
    for v in VERDICTS:
        out += [f"## {v.id}\n", f"{_cell(v.means)}\n", f"- **decided**: {_cell(v.decided)}"]
        out += [f"- **refuted**: {_cell(v.refuted)}", *(f"- **do**: {_cell(d)}" for d in v.do)]
        out += [f"- **needs**: {_cell('; '.join(v.needs))}"]
        out += [f"- **{title}**: {_cell(text)}" for title, text in calls(v)]
        out.append("")
    return "\n".join(out)


def commands() -> str:
    """Every command's help."""
    out = [NOTE, "# Commands\n"]
    for name, module, _ in COMMANDS:
        below = getattr(importlib.import_module(module).command, "commands", {})
        for words in ([name], *([name, inner] for inner in below)):
            help_ = CliRunner().invoke(main, [*words, "--help"], prog_name="moexray", terminal_width=100)
            out += [f"## moexray {' '.join(words)}\n", "```text", help_.output.rstrip(), "```", ""]
    return "\n".join(out)


def metrics() -> str:
    """Every metric of the exporter: name, kind, labels, meaning."""
    shared = ", ".join(SCOPE)
    out = [NOTE, "# Metrics\n",
           "What `moexray exporter` and `moexray watch` serve; [live.md](live.md) says how.",
           f"Metrics of an engine have the labels {shared}, too; a label without a value is left out.\n"]
    out += ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for m in METRICS:
        labels = ", ".join(m.label_names[len(SCOPE) :] if m.scoped else (*m.labels, "(exporter)")) or "-"
        out.append(f"| `{m.name}` | {m.kind} | {labels} | {_cell(m.help)} |")
    out += ["", "Buckets (upper borders in seconds):\n"]
    for m in METRICS:
        if m.buckets:
            out.append(f"- `{m.name}`: {', '.join(f'{b:g}' for b in m.buckets)}")
    return "\n".join([*out, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def write(folder: Path) -> None:
    """Writes all pages."""
    for page in (tables, verdicts, metrics, commands):
        (folder / f"{page.__name__}.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
