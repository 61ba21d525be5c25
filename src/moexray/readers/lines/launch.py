"""Settings in force: command lines, environment blocks and the configurations that engines echo.

One command (with its environment) has one `where`; rows with the same `where` belong together.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.lines.launch_words import ENGINES, canonical, is_setting_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["add_command", "parse"]

COMMAND = lazy(
    r"\bvllm (?:serve|bench)\b|\bvllm\.entrypoints[\w.]*|\bsglang\.launch_server\b"
    r"|\bsglang(?:\.srt[\w.]*| serve)\b"
    r"|\btrtllm-(?:serve|bench|llmapi-launch)\b|\btorchrun\b|\bpython3? -m torch\.distributed\.(?:run"
    r"|launch)\b"
    r"|\bdeepspeed\b|\baccelerate launch\b|\bdocker run\b|\bpodman run\b"
)
PROSE = lazy(
    r"(?i)\b(?:usage|example|e\.g\.|try|use|run|please|you can|instead of|see) ?:? *`?$|^\s*(?:#|//)"
)
ASSIGNMENT = lazy(r"(?<![\w.-])([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)=(\"[^\"]*\"|'[^']*'|[^\s,;)\"'`]*)")
EXPORT = lazy(
    r"^\s*(?:export|declare -x|ENV|set|setenv|-\s|--env |-e"
    r" )?\s*[\"']?([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)[\"']?\s*[:=]\s*"
    r"(?:\"([^\"]*)\"|'([^']*)'|([^\s\"';]+))"
)
YAML_NAME = lazy(r"^\s*(?:-\s*)?name:\s*[\"']?([A-Z][A-Z0-9_]+)[\"']?\s*$")
YAML_VALUE = lazy(r"^\s*value:\s*(.+?)\s*$")
YAML_ITEM = lazy(r"^\s*-\s*[\"']?(--?[A-Za-z][^\"']*?)[\"']?\s*$|^\s*-\s*[\"']?([^\s:\"'][^:\"']*)[\"']?\s*$")
YAML_START = lazy(
    r"^\s*(?:-\s*)?(?:command|args|extraArgs|extra_args):\s*(?:\[(.*)\]|[\"']?(\S.* --?\w.*?|--\w.*?)[\"']?)?"
    r"\s*[|>]?-?\s*$"
)
CONFIG = lazy(  # a file of settings, YAML or JSON
    r"^\s*[\"']?(tensor[-_]parallel[-_]size|tp[-_]size|(?:enable|disable|gpu|mem)[-_](?:sleep[-_]mode|memory[-_]saver"
    r"|custom[-_]all[-_]reduce|memory[-_]utilization|fraction[-_]static))[\"']?\s*:\s*[\"']?([\w.]+)[\"']?\s*,?\s*$"
)
ECHO = lazy(
    r"(?:server_args=)?ServerArgs\((.*)\)\s*$|non-default args: (?:Namespace\(|\{)(.*)[)}]\s*$|\bargs:"
    r" Namespace\((.*)\)\s*$"
    r"|Initializing (?:a V1|an|a) LLM engine[^:]*config: (.*)$|EngineArgs\((.*)\)\s*$"
)
PAIR = lazy(
    r"['\"]?\b([A-Za-z_]\w*)['\"]?\s*[=:]\s*('[^']*'|\"[^\"]*\"|\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)"
    r"|[^,\s(){}]+)"
)
PRINTED = lazy(
    r"\b(PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF)\b\s*(?:=|:|is set to|is)?\s*[\"']?([a-z_]+:[\w.\[\]:>,-]+)"
)
SHAPE = lazy(
    r"[\"']?\b(hidden_size|hidden_dim|n_routed_experts|num_experts|num_local_experts|num_experts_per_tok"
    r"|num_redundant_experts|num_hidden_layers|moe_intermediate_size)[\"']?\s*[:=]\s*(\d+)\b(?!\.)"
)
LONGEST = 60  # lines of one command


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds one row per option to `launch`."""
    at = 0
    while at < len(lines):
        line = lines[at]
        text = line.text
        if len(text) < 4 or not (any(w in text for w in _GATE) or _OPENING.match(text)):
            at += 1
            continue
        if COMMAND.search(text) and _is_command(text):
            joined, used = _continued(lines, at)
            _add(out, line, _command(joined), joined)
            at += used
        elif m := ECHO.search(text):
            body = next(g for g in m.groups() if g is not None)
            _add(out, line, ((*p, "log") for p in _pairs(body)), text)
            at += 1
        elif _yaml_command(text) is not None:
            joined, used = _yaml(lines, at)
            _add(out, line, _command(joined), joined)
            at += used
        else:
            at += _environment(lines, at, out)


# What a line must hold to be looked at; most lines of a log hold none of it.
_GATE = (
    "vllm", "sglang", "trtllm", "tensorrt_llm", "torchrun", "torch.distributed", "deepspeed", "accelerate",
    "docker run", "podman run", "_CONF", "Args", "args", "config:", "name:", "command:", "hidden_", "experts",
    "parallel", "tp_size", "tp-size", "sleep", "saver", "all_reduce", "all-reduce", "utilization", "static",
)  # fmt: skip
_OPENING = lazy(
    r"\s*(?:export |declare -x |ENV |set |setenv |- |--env |-e )?[\"']?[A-Z][A-Z0-9]*_[A-Z0-9_]+[\"']?\s*[:=]"
)


def _is_command(text: str) -> bool:
    """A command at the start of a line, behind a prompt, assignments or a wrapper; not inside a sentence."""
    m = COMMAND.search(text)
    head = text[: m.start()] if m else ""
    if PROSE.search(head):
        return False
    words = ASSIGNMENT.sub("", head).replace("`", " ").split()
    plain = [w for w in words if re.fullmatch(r"[A-Za-z]+[.,]?", w) and w not in SHELL_WORDS]
    if len(plain) > 2 or any(w.lower() in SENTENCE for w in plain):
        return False
    return "--" in text or "=" in head or " -" in text or text.rstrip().endswith("\\") or not plain


SENTENCE = frozenset({"and", "avoid", "for", "if", "in", "or", "set", "the", "to", "use", "using", "with"})
SHELL_WORDS = frozenset(
    {
        "python",
        "python3",
        "sudo",
        "env",
        "exec",
        "nohup",
        "srun",
        "mpirun",
        "numactl",
        "time",
        "export",
        "docker",
        "run",
        "bash",
        "sh",
        "CMD",
        "ENTRYPOINT",
        "command",
    }
)


def _continued(lines: Sequence[Line], at: int) -> tuple[str, int]:
    """A command with the lines that a backslash joins to it, and how many lines those are."""
    parts, used = [], 0
    for line in lines[at : at + LONGEST]:
        text = line.text.rstrip()
        used += 1
        if used > 1 and not text.strip():
            break
        parts.append(text.removesuffix("\\").strip())
        if not text.endswith("\\"):
            following = lines[at + used].text.lstrip() if at + used < len(lines) else ""
            if not following.startswith("--"):
                break
    return " ".join(parts), used


def _command(text: str) -> Iterator[tuple[str, str, str]]:
    """(key, value, origin) of every option and environment variable of one command."""
    for word, value, origin in _words(_split(text)):
        yield (word if origin == "environment" else canonical(word)), value, origin


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=False)
    except ValueError:
        return text.replace('"', "").replace("'", "").split()


def _words(words: list[str]) -> Iterator[tuple[str, str, str]]:
    i = 0
    while i < len(words):
        word = words[i].strip("`")
        i += 1
        if word == "-m":
            i += 1
        elif word in ("serve", "trtllm-serve") and i < len(words) and not words[i].startswith(("-", "\\")):
            yield "model", words[i], "command"  # the one positional argument
            i += 1
        elif word in ("-e", "--env") and i < len(words) and "=" in words[i]:
            name, _, value = words[i].partition("=")
            i += 1
            yield name, value, "environment"
        elif word.startswith(("--env=", "-e=")):
            name, _, value = word.partition("=")[2].partition("=")
            yield name, value, "environment"
        elif "=" in word and not word.startswith("-"):
            name, _, value = word.partition("=")
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name.isupper():
                yield name, value, "environment"
        elif word.startswith("-") and len(word) > 1 and not re.match(r"-\.?\d", word):
            if "=" in word:
                name, _, value = word.partition("=")
                yield name, value, "command"
                continue
            value, taken = _value(words, i)
            i += taken
            yield word, value, "command"


def _value(tokens: list[str], i: int) -> tuple[str, int]:
    """The words behind an option: several for lists; "True" for a flag."""
    taken: list[str] = []
    while i + len(taken) < len(tokens):
        word = tokens[i + len(taken)].strip("`")
        if word.startswith("-") and not re.match(r"-\.?\d", word):
            break
        if word in ("&", "&&", "|", "||", ";", "2>&1", ">", ">>") or word.startswith((">", "2>")):
            break
        if taken and not re.fullmatch(r"[\d.]+", word):
            break
        taken.append(word)
    return (" ".join(taken), len(taken)) if taken else ("True", 0)


def _pairs(body: str) -> Iterator[tuple[str, str]]:
    for m in PAIR.finditer(body):
        yield canonical(m[1]), m[2].strip("'\"")


def _environment(lines: Sequence[Line], at: int, out: Reading) -> int:
    """Environment of a shell script, a Dockerfile, a Compose or Kubernetes file, or printed by an engine."""
    line = lines[at]
    text = line.text
    if (m := YAML_NAME.match(text)) and at + 1 < len(lines) and is_setting_name(m[1]):
        value = YAML_VALUE.match(lines[at + 1].text)
        if value:
            _add(
                out,
                line,
                [(m[1], value[1].strip("\"'"), "environment")],
                f"{text.strip()} {value[0].strip()}",
            )
            return 2
    above = lines[at - 1].text.rstrip() if at else ""
    if above.endswith("setting") and EXPORT.match(text):
        return 1  # torch's own advice, broken by a hard wrap
    if (m := EXPORT.match(text)) and is_setting_name(m[1]) and not COMMENT.match(text):
        _add(out, line, [(m[1], (m[2] or m[3] or m[4] or "").rstrip(","), "environment")], text)
    elif m := CONFIG.match(text):
        _add(out, line, [(canonical(m[1]), m[2], "config")], text)
    elif "hidden" in text or "experts" in text:
        shape = [(m[1], m[2], "config") for m in SHAPE.finditer(text)]
        _add(out, line, shape, text)
    elif (m := PRINTED.search(text)) and not ADVICE.search(text) and not COMMENT.match(text):
        _add(out, line, [(m[1], m[2].rstrip(".,"), "log")], text)
    return 1


COMMENT = lazy(r"^\s*(?:#|//)")
# torch's own message, documentation and chats name the setting without using it
ADVICE = lazy(
    r"(?i)\btry\b|setting |\bset\b|avoid|should|recommend|consider|instead|\bhelps?\b|\?|out of memory"
    r"|unset|without|remove|e\.g\."
)


def _yaml_command(text: str) -> str | None:
    m = YAML_START.match(text)
    return None if m is None else (m[1] or m[2] or "")


def _yaml(lines: Sequence[Line], at: int) -> tuple[str, int]:
    """The words of a `command:` or `args:` list of a Kubernetes or Compose file."""
    inline = _yaml_command(lines[at].text)
    if inline and "[" not in lines[at].text.partition(":")[2].lstrip()[:1]:
        return inline, 1
    if inline:
        return " ".join(w.strip().strip("\"'") for w in inline.split(",")), 1
    words, used = [], 1
    for line in lines[at + 1 : at + LONGEST]:
        text = line.text.rstrip()
        item = YAML_ITEM.match(text)
        if item:
            words.append((item[1] or item[2]).strip())
        elif text.strip().startswith(("--", "vllm", "python", "sglang", "trtllm", "exec ")):
            words.append(text.strip().removesuffix("\\").strip())
        elif YAML_START.match(text):
            pass
        else:
            break
        used += 1
    return " ".join(words), used


def add_command(out: Reading, where: str, text: str) -> None:
    """Adds the settings of one command line that stands at `where`, its environment in front."""
    _rows(out, where, _command(text), text)


def _add(out: Reading, line: Line, settings: object, text: str) -> None:
    _rows(out, f"line {line.number}", settings, text)


def _rows(out: Reading, where: str, settings: object, text: str) -> None:
    engine = next((name for pattern, name in ENGINES if pattern.search(text)), None)
    if engine is None and "ServerArgs(" in text:
        engine = "sglang"
    elif engine is None and ("LLM engine" in text or "non-default args" in text):
        engine = "vllm"
    for key, value, origin in settings:  # type: ignore[attr-defined]
        out.add(
            "launch",
            where=where,
            engine=engine,
            key=key,
            value=value,
            origin=origin,
            text=text.strip()[:1000],
        )
