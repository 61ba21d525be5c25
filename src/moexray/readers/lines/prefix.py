"""What engines, runtimes and logging libraries put before a message: time, rank, worker, level.

Prefixes nest in any order ("(Worker_EP3 pid=7) ERROR 01-12 09:40:11 [core.py:710] ..."), so they are
taken off one after the other until nothing known is left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.lines.stamp import CLOCK, ISO, epoch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LEVELS", "Prefix", "looks_like_seconds", "take_prefix"]

LEVELS = {
    "info": "info", "i": "info", "notice": "info",
    "debug": "debug", "d": "debug", "trace": "debug", "v": "debug", "verbose": "debug",
    "warning": "warning", "warn": "warning", "w": "warning",
    "error": "error", "e": "error", "err": "error",
    "critical": "error", "fatal": "error", "f": "error", "exception": "error",
}
WORDS = r"(INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|FATAL|TRACE|NOTICE|Info|Warning|Error|Debug)"
MOST = 8  # prefixes on one line; more is no log

PROCESS = lazy(r"\((?=[^()]*\bpid=\d)([^()]{1,160})\)[ \t]?")
BRACKET_DATE = lazy(r"\[" + ISO + r"((?: [A-Z_]{2,12}\d+)*)\]:? ?")
RANK_TAG = lazy(r"\[(?:rank|RANK |Rank |default)(\d{1,6})\](:?) ?")
MPI_TAG = lazy(r"\[\d+,(\d+)\]<std(?:out|err)>: ?")
GLOG = lazy(r"\[?([IWEF])(\d{1,2})(\d\d) " + CLOCK + r"(?: +\d+)? [\w./+-]+:\d+\] ?")
RELATIVE = lazy(r"\[\s*([+-]?)\s*(\d+(?:\.\d+)?)\s*s\]\s*")
KERNEL = lazy(r"\[ *(\d{1,9}\.\d{3,6})\] ")
ORIGIN = lazy(r"\[?[\w./+-]+\.(?:py|pyx|cpp|cc|cu|cuh|hpp|h|rs|go):\d+\]:? ?")
US_DATE = lazy(r"\[(\d\d)/(\d\d)/((?:19|20)\d\d)[- ]" + CLOCK + r"\] ?")
PRODUCT = lazy(r"\[(?:TRT-LLM|TensorRT-LLM|TRT|TRTLLM)\] ?")
LEVEL_TAG = lazy(r"\[(" + WORDS[1:-1] + r"|[IWEFDV])\](?: - | ?)")
LOGGER_TAG = lazy(r"\[[\w.]{1,80}\](?=\[" + WORDS + r"\])")
DATE = lazy(ISO + r"(?=[ \t:\]|-])[ \t]*(?:[-|:] *)?")
TIME = lazy(CLOCK + r"[ \t]+(?=[\[(]?" + WORDS + ")")
LOGGING = lazy(
    r"(?:[\w.$<>-]{1,80} +- +)?(?:\| *|\[)?" + WORDS + r"\b(?:\]| *\|)?"
    r"(?: +[\w.$:<>-]{1,80}(?=:? - |: ))?(?: +- +|: +| +|$)"
)
LEVEL = lazy(WORDS + r"(?::[\w.]{1,80}:|:[ \t]+|[ \t]+(?!=)|:(?=\S)|$)")
SHORT_DATE = lazy(r"(\d\d)-(\d\d) " + CLOCK + r"[ \t]*")
SECONDS = lazy(
    r"[+t=]{0,2}(\d{1,10}\.\d{1,9}|\d{10}(?:\d{3}|\d{6}|\d{9})?)s?:?[ \t]+(?=[^\W\d]|[\[(<])"
)
UNIT = lazy(
    r"[+t=]{0,2}[\d.]+s?:?[ \t]+(?:[KMGT]i?B|bytes|B|ms|us|ns|s|sec\w*|min\w*|h|hours?|tok\w*|req\w*|it|x|k|M"
    r"|G|steps?|[KMG]Hz|W|C|of|and|or|is|to)\b"
)
NCCL = lazy(r"[\w.-]+:\d+:\d+ \[-?\d+\] (?:[\d.]+ )?NCCL (INFO|WARN|ERROR|ABORT|TRACE|VERSION)")
PARTS = lazy(r"(DP|TP|EP|PP)[_ ]?(\d+)")


@dataclass(slots=True)
class Prefix:
    """What the prefixes of one line say; see Line for the meaning of the fields.

    `year` is that of stamps without one; `relative` marks a time that counts from the start of a
    process, `dated` one with a year.
    """

    year: int
    t_s: float | None = None
    dated: bool = False
    relative: bool = False
    rank: int | None = None
    worker: str | None = None
    level: str | None = None
    known: bool = False


def take_prefix(text: str, year: int, *, seconds: bool = False) -> tuple[str, Prefix]:
    """Takes every known prefix off a line.

    Args:
        text: One line without colours and container prefixes.
        year: For stamps without a year.
        seconds: Lines of this file start with plain seconds ("7.688 snapshot written").

    Returns:
        (message, prefix); the message is the text itself where no prefix was found.
    """
    found = Prefix(year)
    rest = text.lstrip() if text[:1] in " \t" else text
    if seconds and (m := SECONDS.match(rest)) and not UNIT.match(rest):
        found.t_s, found.relative = _plain(m[1]), True
        rest = rest[m.end() :]
    for _ in range(MOST):
        end = 0
        for taker in TAKERS.get(_class(rest), ()):
            if end := taker(rest, found):
                break
        if not end:
            break
        rest = rest[end:]
    if NCCL.match(rest) or rest.startswith("Traceback (most recent call last)"):
        found.known = True
    touched = found.known or found.worker is not None or found.t_s is not None or found.rank is not None
    return (rest if touched else text), found


def looks_like_seconds(head: str) -> bool:
    """Whether most lines of a text start with plain seconds or epoch stamps, then words."""
    lines = [x for x in head.splitlines()[:200] if x.strip()]
    hits = sum(bool(SECONDS.match(x)) and not UNIT.match(x) for x in lines)
    return hits > 0 and hits >= 0.6 * len(lines)


def _class(text: str) -> str:
    first = text[:1]
    return "0" if first.isdigit() else "a" if first.isalpha() else first


def _plain(digits: str) -> float:
    """Seconds of a number at the start of a line; long integers are epoch ms, us or ns."""
    if "." in digits or len(digits) <= 10:
        return float(digits)
    return int(digits) / float(10 ** (len(digits) - 10))


def _set_time(found: Prefix, t_s: float | None, *, dated: bool) -> None:
    if t_s is not None and (found.t_s is None or (dated and not found.dated)):
        found.t_s, found.dated, found.relative = t_s, dated, False


def _name(found: Prefix, worker: str) -> None:
    """Takes a worker's name and, where it is certain, its global rank.

    EP ranks run over all DP and TP ranks; without EP a TP rank is global only if nothing else is
    named, or if the engine numbers TP over DP ("DP1 TP3": attention groups inside one TP group).
    """
    found.worker = worker or found.worker
    parts = {k: int(v) for k, v in PARTS.findall(worker)}
    if parts.get("PP"):
        return
    if "EP" in parts:
        found.rank = parts["EP"]
    elif "TP" in parts and ("DP" not in parts or " " in worker):
        found.rank = parts["TP"]


def _process(text: str, found: Prefix) -> int:
    m = PROCESS.match(text)
    if not m:
        return 0
    inner = m[1]
    name = inner.split()[0]
    if (r := re.search(r"\brank=(\d+)", inner)) is not None:
        found.rank = int(r[1])
    if PARTS.search(name):
        _name(found, name)
    elif name.startswith(("pid=", "Ray", "Serve", "Vllm", "raylet", "autoscaler")):
        found.worker = inner.replace(",", "")
    else:
        found.worker = name
    found.known = True
    return m.end()


def _bracket_date(text: str, found: Prefix) -> int:
    m = BRACKET_DATE.match(text)
    if not m:
        return 0
    g = m.groups()
    _set_time(found, epoch((int(g[0]), int(g[1]), int(g[2])), g[3:7], g[7]), dated=True)
    if g[8].strip():
        _name(found, g[8].strip())
    found.known = True
    return m.end()


def _rank_tag(text: str, found: Prefix) -> int:
    m = RANK_TAG.match(text)
    # "[Rank 1] Watchdog" is the rank in the process group and part of the message
    if not m or (text.startswith("[Rank ") and not m[2]):
        m = MPI_TAG.match(text)
    if not m:
        return 0
    found.rank = int(m[1])
    found.known = True
    return m.end()


def _glog(text: str, found: Prefix) -> int:
    m = GLOG.match(text)
    if not m:
        return 0
    _set_time(found, epoch((found.year, int(m[2]), int(m[3])), m.groups()[3:7]), dated=False)
    found.level = LEVELS[m[1].lower()]
    found.known = True
    return m.end()


def _relative(text: str, found: Prefix) -> int:
    m = RELATIVE.match(text)
    if m:
        value = float(m[2])
        if found.t_s is None:
            found.t_s, found.relative = -value if m[1] == "-" else value, True
        found.known = True
        return m.end()
    m = KERNEL.match(text)
    if m:
        if found.t_s is None:
            found.t_s, found.relative = float(m[1]), True
        found.known = True
        return m.end()
    return 0


def _us_date(text: str, found: Prefix) -> int:
    m = US_DATE.match(text)
    if not m:
        return 0
    date = (int(m[3]), int(m[1]), int(m[2]))
    _set_time(found, epoch(date, m.groups()[3:7]), dated=True)
    found.known = True
    return m.end()


def _tag(text: str, found: Prefix) -> int:
    """[file.py:12], [TRT-LLM], [name][INFO], [INFO]."""
    if m := LEVEL_TAG.match(text):
        found.level = LEVELS[m[1].lower()]
        found.known = True
        return m.end()
    for pattern in (ORIGIN, PRODUCT, LOGGER_TAG):
        if m := pattern.match(text):
            found.known = True
            return m.end()
    return 0


def _date(text: str, found: Prefix) -> int:
    m = DATE.match(text)
    if not m:
        return 0
    g = m.groups()
    _set_time(found, epoch((int(g[0]), int(g[1]), int(g[2])), g[3:7], g[7]), dated=True)
    found.known = True
    return m.end() + _logging(text[m.end() :], found)


def _logging(text: str, found: Prefix) -> int:
    """The rest of a logging format after its date: "name - LEVEL - ", "LEVEL name: ", "| LEVEL |"."""
    m = LOGGING.match(text)
    if not m:
        return 0
    found.level = LEVELS[m[1].lower()]
    return m.end()


def _time(text: str, found: Prefix) -> int:
    m = TIME.match(text)
    if not m:
        return 0
    _set_time(found, epoch((1970, 1, 1), m.groups()[:4]), dated=False)
    found.known = True
    return m.end()


def _level(text: str, found: Prefix) -> int:
    m = LEVEL.match(text)
    if not m:
        return 0
    found.level = LEVELS[m[1].lower()]
    upper = m[1].isupper()
    end = m.end()
    if (d := SHORT_DATE.match(text, end)) is not None:
        _set_time(found, epoch((found.year, int(d[1]), int(d[2])), d.groups()[2:6]), dated=False)
        end = d.end()
        upper = True
    if (o := ORIGIN.match(text, end)) is not None:
        end, upper = o.end(), True
    found.known = found.known or upper
    return end if upper else 0


TAKERS: dict[str, tuple[Callable[[str, Prefix], int], ...]] = {
    "(": (_process,),
    "[": (_bracket_date, _rank_tag, _glog, _relative, _us_date, _tag),
    "0": (_date, _time),
    "a": (_level, _glog),
}
