"""Very long documents are offered to the shapes in part first."""

import json
import sys

import pytest

from moexray.core.errors import ReadError
from moexray.core.run import Reading
from moexray.readers.read_any import read_any
from moexray.readers.shapes import MANY, first_that_takes, sample

SEEN: list[int] = []


def declines(document, source, out):
    SEEN.append(len(document))
    return False


def takes(document, source, out):
    SEEN.append(len(document))
    return True


def doubts(document, source, out):
    """Says of a part that it is damaged: only the whole decides."""
    SEEN.append(len(document))
    if len(document) <= MANY:
        raise ReadError("an end is missing")
    return True


def offered(name: str, document) -> tuple[bool, list[int]]:
    SEEN.clear()
    sys.modules["shape_of_this_test"] = sys.modules[__name__]
    took = first_that_takes([f"shape_of_this_test:{name}"], document, None, Reading("json"))
    return took, list(SEEN)


def test_a_shape_that_declines_a_part_never_walks_the_whole():
    took, seen = offered("declines", [{"a": i} for i in range(10 * MANY)])
    assert not took
    assert len(seen) == 1
    assert seen[0] < MANY


@pytest.mark.parametrize("name", ["takes", "doubts"])
def test_a_shape_that_may_take_it_gets_the_whole(name):
    took, seen = offered(name, list(range(3 * MANY)))
    assert took
    assert seen[-1] == 3 * MANY


def test_a_part_keeps_the_first_items_and_the_order_and_reaches_to_the_end():
    part = sample({"events": list(range(4 * MANY)), "name": "x"})
    assert part["name"] == "x"
    assert part["events"][:1000] == list(range(1000))
    assert part["events"] == sorted(part["events"])
    assert part["events"][-1] > 3.9 * MANY
    assert len(part["events"]) < MANY


def test_short_documents_are_offered_as_they_are():
    document = [[1, 2], {"a": [3]}]
    assert sample(document) is document


def test_a_long_object_is_cut_by_keys():
    part = sample({f"k{i}": i for i in range(2 * MANY)})
    assert next(iter(part)) == "k0"
    assert len(part) < MANY


def test_more_than_the_part_is_read_of_a_file_of_a_known_shape(tmp_path):
    path = tmp_path / "requests.json"
    records = [{"request_id": str(i), "ttft_ms": 20 + i % 7, "prompt_tokens": 100, "output_tokens": 9} for i in range(MANY + 5)]
    path.write_text(json.dumps(records))
    run = read_any([str(path)])
    assert run.inputs[0].rows > 2 * len(sample(records))  # the part is short; the table has a ceiling of its own
