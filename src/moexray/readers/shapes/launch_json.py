"""Launch settings inside JSON: argument lists and environments of container inspections, pods and jobs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from moexray.readers.lines.launch import add_command
from moexray.readers.lines.launch_words import is_setting_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moexray.core.run import Reading

__all__ = ["launch_json", "model_shape"]

SHAPE = (
    "hidden_size", "hidden_dim", "n_routed_experts", "num_experts", "num_local_experts",
    "num_experts_per_tok", "num_redundant_experts", "num_hidden_layers", "moe_intermediate_size",
)  # fmt: skip

MAX_DEPTH = 12
MAX_NODES = 20_000  # a pod list of a large cluster; what lies beyond is no launch


def model_shape(document: Any, out: Reading) -> None:
    """Adds the shape of a model that stands in its configuration; the file itself holds no record."""
    for node in (document, document.get("text_config")) if isinstance(document, dict) else ():
        if not isinstance(node, dict) or not {"hidden_size", "hidden_dim"} & set(node):
            continue
        for key in SHAPE:
            if type(value := node.get(key)) is int:
                text = f"{key}: {value}"
                out.add("launch", where=f"key {key}", key=key, value=str(value), origin="config", text=text)
                out.rows -= 1


def launch_json(document: Any, out: Reading) -> None:
    """Adds the settings of every command found to table `launch`.

    A command is an object with a list of words (`command`, `args`, `Cmd`, `Entrypoint`) that has options;
    its environment stands beside it: `K=V` words, name and value pairs, or an object of names.
    """
    for place, node in _objects(document):
        words = [w for value in node.values() if _is_words(value) for w in value]
        lists = [v for v in node.values() if isinstance(v, (list, dict))]
        settings = [x for value in (*lists, node) for x in _environment(value)]
        if any(w.startswith("--") for w in words):
            command = [w for w in words if "=" not in w or w.startswith("-")]
            add_command(out, place, " ".join([*settings, *map(shlex.quote, command)]))


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(w, str) for w in value)


def _environment(value: Any) -> Iterator[str]:
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                pairs.append((item.get("name"), item.get("value")))
            elif isinstance(item, str) and not item.startswith("-"):
                pairs.append(item.partition("=")[::2])
    for name, given in pairs:
        if isinstance(name, str) and isinstance(given, (str, int)) and is_setting_name(name):
            yield f"{name}={shlex.quote(str(given))}"


def _objects(document: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object with its path, outer ones first."""
    open_: list[tuple[str, Any, int]] = [("", document, 0)]
    for seen, (place, node, depth) in enumerate(open_):
        if seen >= MAX_NODES or depth > MAX_DEPTH:
            return
        if isinstance(node, dict):
            yield place or "top", node
        inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        open_ += [
            (f"{place}.{k}".lstrip("."), v, depth + 1) for k, v in inner if isinstance(v, (dict, list))
        ]
