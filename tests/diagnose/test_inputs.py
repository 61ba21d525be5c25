"""What is wrong with files is said of each of them, and the words of one file are not those of all."""

import pytest

from moexray.core.run import Reading, build_run
from moexray.diagnose.inputs import MEANING, problems_to_findings


def claim(id, *files):
    readings = []
    for name in files:
        reading = Reading("csv")
        reading.problem(id, f"text of {name}", lost=1)
        readings.append((name, reading))
    [found] = problems_to_findings(build_run(readings, []))
    assert [e.source for e in found.evidence] == list(files)
    return found.claim


@pytest.mark.parametrize("id", MEANING)
def test_one_file(id):
    assert claim(id, "a") == f"a {MEANING[id][2]}: text of a"


@pytest.mark.parametrize(("files", "named"), [
    ("ab", "Each of a and b"), ("abc", "Each of a, b and c"), ("abcde", "Each of a, b, c and 2 more"),
])
def test_several_files(files, named):
    assert claim("input.dirty_table", *files) == f"{named} holds values that cannot be right; a: text of a"
