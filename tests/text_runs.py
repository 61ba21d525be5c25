"""Diagnoses texts that a test holds as strings."""

from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources


def run_of(**files):
    """A Run of texts; keyword `a__server` is the file "a/server"."""
    return read_sources([Source(n.replace("__", "/"), content=t.encode()) for n, t in files.items()])


def said(**files):
    """(id -> finding) of texts, in the order of the findings."""
    return {f.id: f for f in diagnose(run_of(**files)).findings}


def ruled_out(**files):
    return {f.id: f for f in diagnose(run_of(**files)).ruled_out}


def actions(finding):
    return " | ".join(r.action for r in finding.remedies)
