"""Forms of engine log lines: a kind, words that the line must hold, and a pattern with named fields.

Kinds and fields (absent where not printed; a number where the text is one):

    eplb.balance      step, avg_tokens, max_tokens, balancedness, countdown, dummy, last_10, last_100,
                      last_1000
    eplb.hotness      before_mean, before_max, after_mean, after_max (max/mean: 1 is best)
    eplb.start        mode
    eplb.done         mode, seconds
    eplb.skipped      utilisation
    eplb.transfer     (one layer of an asynchronous move arrived)
    backend           scope (moe, attention, all2all, linear, other), backend, rest
    backend.off       backend, rest
    sched.preempt     total
    batch             what (prefill, decode), new_tokens, cached, running, queued, transferring, usage,
                      accept_rate, throughput
    stats             engine, prompt_tok_s, output_tok_s, running, waiting, kv_pct, hit_pct
    spec              accepted, drafted (tokens of speculative decoding since the last such line)
    kv.transfer       transfers, mean_ms, p90_ms; of a single one: tokens, mean_ms
    host.gc           seconds, generation, objects
    mem.snapshot      state (begin, end), entries, traces, seconds
    weights.loaded    seconds
    engine.rank       rank, world, dp, pp, tp, ep
    engine.start, engine.ready (state: up, warm), engine.version
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FORMS", "Form"]


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a line.

    Args:
        kind: Kind of the event.
        words: The line holds at least one of them, as written (a fast test before the pattern).
        pattern: Searched in the message; its named groups become fields.
    """

    kind: str
    words: tuple[str, ...]
    pattern: re.Pattern[str]


def _form(kind: str, words: str, pattern: str) -> Form:
    return Form(kind, tuple(words.split("|")), re.compile(pattern))


def _n(name: str) -> str:
    return rf"(?P<{name}>-?\d[\d.,]*(?:[eE][+-]?\d+)?)"


_EPLB = (
    _form(
        "eplb.balance",
        "balancedness=",
        rf"EPLB step:?\s*(?:{_n('step')})?.*?avg_tokens={_n('avg_tokens')}.*?max_tokens={_n('max_tokens')}"
        rf".*?balancedness={_n('balancedness')}(?:.*?next rearrange\w*: ?{_n('countdown')})?"
        r".*?(?P<dummy>dummy batch|warm-?up)?\s*\)?$",
    ),
    _form(
        "eplb.balance",
        "Balancedness",
        rf"\[Expert Balancedness\].*?(?:forward_pass_id={_n('step')})?"
        rf"\s*current_pass_balancedness={_n('balancedness')}"
        rf"(?:.*?last_10_average_balancedness={_n('last_10')})?"
        rf"(?:.*?last_100_average_balancedness={_n('last_100')})?"
        rf"(?:.*?last_1000_average_balancedness={_n('last_1000')})?",
    ),
    _form("eplb.balance", "next rearrange", rf"next rearrange\w*(?: in)?[:= ]+{_n('countdown')}"),
    _form(
        "eplb.hotness",
        "hotness imbalance",
        rf"hotness imbalance,? current: mean={_n('before_mean')},? max={_n('before_max')}"
        rf"(?:,? updated: mean={_n('after_mean')},? max={_n('after_max')})?",
    ),
    _form("eplb.start", "Rearranging experts|rearranging experts", r"earranging experts(?P<mode>[^.]*)"),
    _form(
        "eplb.done",
        "Rearranged experts|rearranged experts",
        rf"earranged experts(?P<mode>.*?) in {_n('amount')} ?(?P<unit>seconds?|s|ms|milliseconds)\b"
        r"(?P<mode_after>.*)",
    ),
    _form("eplb.start", "rebalance start", r"(?P<mode>)\[?EPLB\w*\]? ?rebalance start"),
    _form(
        "eplb.done",
        "rebalance end",
        rf"\[?EPLB\w*\]? ?rebalance end(?:.*?\b(?:total|time)={_n('amount')} ?(?P<unit>s|ms))?",
    ),
    _form("eplb.skipped", "ep rebalancing", rf"Skipped ep rebalancing.*?utilization {_n('utilisation')}?"),
    _form("eplb.transfer", "async transfer", r"finish(?:ed)? async transfer"),
)

_BACKEND = (
    _form(
        "backend.off",
        "isabled|isabling",
        r"(?:[Aa]uto-?d|D|d)isabl(?:ed|ing) (?P<backend>[A-Z]\w+)\b(?= for| on| because|\.)(?P<rest>.*)",
    ),
    _form(
        "backend",
        "backend",
        r"\bUs(?:ing|e) (?:the )?(?P<backend>[\w.+-]+)(?P<scope>(?: [\w.+-]+){0,4}?) [Bb]ackend\b"
        r"(?P<rest>.*)",
    ),
    _form(
        "backend",
        "backend",
        r"(?P<scope>[Mm]o[Ee](?:[ _-]runner)?|[Aa]ttention|[Aa]ttn|MLA|[Aa]ll2[Aa]ll|a2a|[Ll]inear|GEMM|gemm"
        r"|KV transfer)[ _-][Bb]ackend(?: (?:is|set to|selected))?(?: ?[:=] ?| )"
        r"'?(?P<backend>(?!not\b|by\b|to\b|for\b|has\b)[\w.+-]+)'?(?P<rest>.*)",
    ),
    _form(
        "backend",
        "kernels for",
        r"\bUsing (?P<backend>[\w.+ -]{2,60}?) kernels for (?P<scope>\w*(?:MoE|Linear|Attn)\w*)",
    ),
    _form(
        "backend",
        "backend",
        r"[Ss]elect(?:ed|ing) (?P<backend>[\w.+-]+) (?:as|for)(?: the)? "
        r"(?P<scope>[\w.+ -]{2,30}?) [Bb]ackend",
    ),
)

_SERVING = (
    _form(
        "sched.preempt",
        "reempt",
        r"(?:is preempted by|[Pp]reempting (?:request|sequence))"
        rf"(?:.*?cumulative_preemption\w*={_n('total')})?",
    ),
    _form("sched.preempt", "Retract requests", rf"Retract requests.*?(?:#retracted_reqs: {_n('count')})?$"),
    _form(
        "stats",
        "throughput",
        rf"(?:Engine {_n('engine')}: )?Avg prompt throughput: {_n('prompt_tok_s')} tokens/s, "
        rf"Avg generation throughput: {_n('output_tok_s')} tokens/s, Running: {_n('running')} reqs"
        rf"(?:, Swapped: \d+ reqs)?, (?:Waiting|Pending): {_n('waiting')} reqs"
        rf"(?:.*?KV cache usage: {_n('kv_pct')}%)?(?:.*?[Pp]refix cache hit rate: {_n('hit_pct')}%)?",
    ),
    _form(
        "spec",
        "SpecDecoding metrics",
        rf"SpecDecoding metrics:.*?\bAccepted: {_n('accepted')} tokens, Drafted: {_n('drafted')} tokens",
    ),
    _form(
        "kv.transfer",
        "KV Transfer metrics",
        rf"KV Transfer metrics:.*?Num successful transfers={_n('transfers')}"
        rf"(?:.*?Avg xfer time \(ms\)={_n('mean_ms')})?(?:.*?P90 xfer time \(ms\)={_n('p90_ms')})?",
    ),
    _form(
        "kv.transfer",
        "required tokens",
        rf"Retrieved {_n('tokens')} out of \d+ required tokens .*?\bcost {_n('mean_ms')} ms",
    ),
    _form(
        "host.gc",
        "GARBAGE COLLECTION|arbage collection|GC ",
        r"(?:LONG GARBAGE COLLECTION DETECTED|[Gg]arbage collection|\bGC)\b"
        r"(?:.*?[Gg]en(?:eration)?[ =:]*(?P<generation>[012])\b)?"
        rf".*?(?:[Dd]uration[:=]?|took|in|pause[:=]?)\s*{_n('amount')} ?"
        r"(?P<unit>ms|s|us|seconds|milliseconds)\b"
        rf"(?:.*?[Oo]bjects[:=]? *{_n('objects')})?",
    ),
    _form(
        "weights.loaded",
        "took",
        rf"(?:Loading weights|Model loading) took (?:.*? and )?{_n('amount')} (?P<unit>s|seconds)\b",
    ),
)

_ENGINE = (
    _form(
        "engine.rank",
        "in world size",
        r"\brank (?P<rank>\d+) in world size (?P<world>\d+) is assigned as DP rank (?P<dp>\d+), "
        r"PP rank (?P<pp>\d+), (?:PCP rank \d+, )?TP rank (?P<tp>\d+)(?:, EP rank (?P<ep>\d+))?",
    ),
    _form("engine.ready", "ready to roll", r"(?P<warm>fired up and ready to roll)"),
    _form(
        "engine.ready",
        "startup complete|Uvicorn running|erver is ready|is now listening|Started GRPCInferenceService",
        r"(?:^|\] )Application startup complete|^Uvicorn running on|[Ss]erver is ready"
        r"|Started GRPCInferenceService|is now listening",
    ),
    _form(
        "engine.start",
        "LLM engine|server_args=|Init torch distributed begin|Load weight begin|erver restarted|estarting|"
        "Starting to load model|API server version",
        r"^Initializing an? (?:V\d )?LLM engine|^server_args=|Init torch distributed begin|Load weight begin"
        r"|[Ss]erver restarted|^Starting to load model|API server version"
        r"|^[Rr]estarting (?:the )?(?:engine|server)",
    ),
)

FORMS: tuple[Form, ...] = (*_EPLB, *_BACKEND, *_SERVING, *_ENGINE)
