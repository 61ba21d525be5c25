"""The rules: the two examples of the docs, the allow-list and its caps, and files that cannot be."""

import pytest

from moexray.core.errors import ReadError, UsageError
from moexray.live.enrich import OTHER, read_rules

RULES = """
labels:
  query: 2
  expert: 4
rules:
  - name: slow SQL
    match:
      kind: client
      name: "SELECT*"
      attributes:
        db.system: "*"
        duration_s: {above: 0.2}
    set:
      db.slow: true
      db.table: "${db.sql.table}"
    labels:
      query: "${db.operation}"
  - name: hot expert
    match:
      attributes:
        moex.expert.hot_share: {above: 0.5}
    set: {moex.hot: true}
    labels: {expert: "${moex.expert.hot}"}
  - name: what the first one set
    match: {attributes: {db.slow: true}}
    set: {seen: 1}
"""
SQL = {"db.system": "postgresql", "db.sql.table": "users", "db.operation": "select"}


def rules(tmp_path, text=RULES):
    file = tmp_path / "rules.yml"
    file.write_text(text)
    return read_rules(file)


def test_a_slow_query_is_marked_and_labelled(tmp_path):
    enrich = rules(tmp_path)
    added, labels = enrich("SELECT users", "client", SQL, 0.3)
    assert added == {"db.slow": True, "db.table": "users", "seen": 1}
    assert labels == {"query": "select"}


@pytest.mark.parametrize(
    ("name", "kind", "attributes", "seconds"),
    [("SELECT users", "client", SQL, 0.2), ("INSERT users", "client", SQL, 0.3), ("SELECT users", "server", SQL, 0.3),
     ("SELECT users", "client", {}, 0.3)],
)  # fmt: skip
def test_every_condition_must_hold(tmp_path, name, kind, attributes, seconds):
    assert rules(tmp_path)(name, kind, attributes, seconds) == ({}, {})


def test_a_hot_expert(tmp_path):
    added, labels = rules(tmp_path)("moex.layer", "internal", {"moex.expert.hot_share": 0.6, "moex.expert.hot": 7}, 0.0)
    assert (added, labels) == ({"moex.hot": True}, {"expert": "7"})
    assert rules(tmp_path)("moex.layer", "internal", {"moex.expert.hot_share": "0.6"}, 0.0) == ({}, {})


def test_an_attribute_that_is_not_there_sets_nothing(tmp_path):
    added, labels = rules(tmp_path)("SELECT", "client", {"db.system": "x"}, 1.0)
    assert added == {"db.slow": True, "seen": 1}
    assert labels == {}


def test_a_label_has_no_more_values_than_allowed(tmp_path):
    enrich = rules(tmp_path)
    seen = [enrich("SELECT", "client", {**SQL, "db.operation": f"op{i}"}, 1.0)[1]["query"] for i in (0, 1, 2, 3, 0, 1)]
    assert seen == ["op0", "op1", OTHER, OTHER, "op0", "op1"]


@pytest.mark.parametrize(
    ("text", "why"),
    [("rules: [{labels: {user: x}}]", "label user is not allowed"), ("rules: [{mach: {}}]", "mach means nothing"),
     ("rules: [{match: {kind: sql}}]", "kind sql is none of"), ("rules: {}\nx: 1", "x means nothing"),
     ("rules: [{match: {attributes: {a: {above: b}}}}]", "want a number"), ("rules: 5", "rules is a list"),
     ("rules: [{match: {attributes: {a: {over: 1}}}}]", "over means nothing"), ("- 1", "keys with values"),
     ("labels: {a: many}", "a number from 1"), ("labels: {a: 0}", "a number from 1"), ("", "keys with values"),
     ("rules: [{set: {a: [1]}}]", "text, number or true/false"), ("rules: [5]", "rule 1")],
)  # fmt: skip
def test_what_cannot_be_is_told(tmp_path, text, why):
    with pytest.raises(UsageError) as error:
        rules(tmp_path, text)
    assert why in str(error.value)


@pytest.mark.parametrize("text", [
    "a: [", "a: !!python/object/apply:os.system ['true']", "&a [*a, *b]", "\x00", "rules: 2001-13-45", "a: !!int abc",
    "labels: {a: !!float x}", f"labels: {{a: {'9' * 5000}}}", "[" * 3000,
])  # fmt: skip
def test_what_is_no_yaml_runs_nothing(tmp_path, text):
    with pytest.raises(ReadError, match="no rules can be read"):
        rules(tmp_path, text)
    with pytest.raises(ReadError):
        read_rules(tmp_path / "none.yml")


def test_a_huge_file_is_refused(tmp_path):
    with pytest.raises(ReadError, match="1 MiB"):
        rules(tmp_path, "#" * (1 << 20) + "#")


@pytest.mark.parametrize("key", ["name", "match: {name", "match: {kind"])
def test_a_text_that_aliases_make_of_any_size_is_refused(tmp_path, key):
    steps = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    text = "{" + ", ".join(["a0: &a0 [z]", *steps]) + "}"
    with pytest.raises(UsageError, match="a text is expected"):
        rules(tmp_path, f"rules:\n- {key}: {text}" + "}" * key.count("{"))
