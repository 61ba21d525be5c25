"""Rules that read spans and set attributes or metric labels, from a YAML file.

    labels:                      # allow-list: what may become a label of a metric, with most values of each
      query: 20
    rules:
      - name: slow SQL
        match:
          kind: client           # internal, server, client, producer, consumer
          name: "SELECT*"        # of the span; * and ? as in a shell
          attributes:
            db.system: "*"       # text: a pattern as above
            duration_s: {above: 0.2}        # duration_s is the span's own; else an attribute's number
        set:
          db.slow: true
          db.table: "${db.sql.table}"       # the value of another attribute
        labels:
          query: "${db.operation}"

All conditions of a rule must hold; rules apply in order, later ones see what earlier ones set.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from moexray.core.errors import ReadError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["OTHER", "Enricher", "Rule", "read_rules"]

KINDS = ("internal", "server", "client", "producer", "consumer")
LIMITS = {"above": lambda value, limit: value > limit, "below": lambda value, limit: value < limit}
OTHER = "other"  # a value beyond those that a label may have
MAX_FILE = 1 << 20  # bytes
VALUE_LENGTH = 128

Value = str | bool | int | float


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; see the module."""

    name: str
    span: str = "*"
    kind: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    set: Mapping[str, Value] = field(default_factory=dict)
    labels: Mapping[str, Value] = field(default_factory=dict)

    def holds(self, span: str, kind: str, attributes: Mapping[str, Any]) -> bool:
        """Whether all conditions hold."""
        if not fnmatchcase(span, self.span) or (self.kind and kind != self.kind):
            return False
        return all(_meets(attributes.get(key), wanted) for key, wanted in self.attributes.items())


def _meets(value: Any, wanted: Any) -> bool:
    if value is None:
        return False
    if isinstance(wanted, dict):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and all(LIMITS[word](value, limit) for word, limit in wanted.items())
    if isinstance(wanted, str):
        return fnmatchcase(str(value), wanted)
    return bool(value == wanted)


class Enricher:
    """Applies rules; threads may share it.

    Args:
        rules: In order.
        most: Label -> most values it may have; a label that is not here is refused when the file is read.
    """

    def __init__(self, rules: tuple[Rule, ...], most: Mapping[str, int]) -> None:
        self.rules, self._most = rules, most
        self._lock = threading.Lock()
        self._values: dict[str, set[str]] = {name: set() for name in most}

    def __call__(
        self, span: str, kind: str, attributes: Mapping[str, Any], seconds: float
    ) -> tuple[dict[str, Value], dict[str, str]]:
        """What the rules set.

        Args:
            span: Its name.
            kind: One of KINDS.
            attributes: Of the span.
            seconds: Its duration.

        Returns:
            (attributes to add, labels of its metric); a label's value beyond its number is `other`.
        """
        seen = {**attributes, "duration_s": seconds}
        added: dict[str, Value] = {}
        labels: dict[str, str] = {}
        for rule in self.rules:
            if rule.holds(span, kind, seen):
                new = {k: v for k, text in rule.set.items() if (v := _filled(text, seen)) is not None}
                added |= new
                seen |= new
                for name, text in rule.labels.items():
                    if (value := _filled(text, seen)) is not None:
                        labels[name] = self._capped(name, str(value)[:VALUE_LENGTH])
        return added, labels

    def _capped(self, name: str, value: str) -> str:
        with self._lock:
            known = self._values[name]
            if value not in known and len(known) >= self._most[name]:
                return OTHER
            known.add(value)
            return value


def _filled(text: Value, seen: Mapping[str, Any]) -> Value | None:
    """`${key}` is the value of that attribute, None where there is none; anything else stays."""
    if not isinstance(text, str) or not (text.startswith("${") and text.endswith("}")):
        return text
    value = seen.get(text[2:-1])
    return value if isinstance(value, str | bool | int | float) else None


def read_rules(file: Path) -> Enricher:
    """Reads a file of rules.

    Raises:
        UsageError: PyYAML is missing, or a key or value that cannot be; names rule and key.
        ReadError: the file cannot be read, or is no YAML.
    """
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as why:
        raise UsageError("rules in YAML need PyYAML", hint="pip install 'moexray[live]'") from why
    try:
        if file.stat().st_size > MAX_FILE:
            raise ReadError("a file of rules has at most 1 MiB", where=str(file))
        document = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as why:  # ValueError: of a tag, a date
        hint = "docs/live.md shows a file"
        raise ReadError(f"no rules can be read ({why})", where=str(file), hint=hint) from why
    where = str(file)
    top = _mapping(document, {"labels", "rules"}, where)
    most = _mapping(top.get("labels") or {}, None, f"{where}, labels")
    for name, count in most.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise UsageError(f"label {name}: most values is a number from 1", where=where)
    rows = top.get("rules") or []
    if not isinstance(rows, list):
        raise UsageError("rules is a list", where=where)
    return Enricher(tuple(_rule(row, most, f"{where}, rule {i + 1}") for i, row in enumerate(rows)), most)


def _rule(row: Any, most: Mapping[str, int], where: str) -> Rule:
    parts = _mapping(row, {"name", "match", "set", "labels"}, where)
    match = _mapping(parts.get("match") or {}, {"name", "kind", "attributes"}, where)
    for key, value in (("rule", parts.get("name")), ("name", match.get("name")), ("kind", match.get("kind"))):
        if not isinstance(value, str | bool | int | float | None):  # aliases make texts of any size
            raise UsageError(f"{key}: a text is expected", where=where)
    kind = str(match.get("kind", ""))
    if kind and kind not in KINDS:
        raise UsageError(f"kind {kind} is none of {', '.join(KINDS)}", where=where)
    attributes = _mapping(match.get("attributes") or {}, None, where)
    for key, wanted in attributes.items():
        if isinstance(wanted, dict):
            for limit in _mapping(wanted, set(LIMITS), f"{where}, {key}").values():
                if not isinstance(limit, int | float):
                    raise UsageError(f"{key}: above and below want a number", where=where)
    sets, labels = (_mapping(parts.get(k) or {}, None, where) for k in ("set", "labels"))
    for key, value in (*sets.items(), *labels.items()):
        if not isinstance(value, str | bool | int | float):
            raise UsageError(f"{key}: text, number or true/false", where=where)
    if unknown := set(labels) - set(most):
        hint = "list it under labels with the most values that it may have"
        raise UsageError(f"label {', '.join(sorted(unknown))} is not allowed", where=where, hint=hint)
    return Rule(str(parts.get("name", "")), str(match.get("name", "*")), kind, attributes, sets, labels)


def _mapping(value: Any, keys: set[str] | None, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
        raise UsageError("keys with values are expected here", where=where)
    if keys is not None and (unknown := set(value) - keys):
        hint = f"known: {', '.join(sorted(keys))}"
        raise UsageError(f"{', '.join(sorted(unknown))} means nothing here", where=where, hint=hint)
    return value
