"""Planted causes are found: random incidents, made by a simulator that knows nothing of the rules."""

import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace

import pytest

from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_any
from moexray.verify.incidents import KINDS, WITHHELD, draw, make

ABOUT_FILES = ("input.", "snapshot.", "smi.", "trace.", "metric.")
SAMPLE = 14  # seeds: one of each kind
RANDOM = 500
SHARE = 0.1  # error of a share of the excess
TAIL = 0.15  # error of the P99 without a cause, relative


@dataclass
class Score:
    """What a diagnosis got right of one incident; None: not asked."""

    seed: int
    kind: str
    root: bool | None = None
    rank: bool | None = None
    links: list = field(default_factory=list)  # of the chain: whether each is there
    asked: bool | None = None
    cpu_s: float = 0.0  # reading and diagnosis
    blamed: list = field(default_factory=list)
    shares: dict = field(default_factory=dict)  # cause -> (said, true)
    tails: dict = field(default_factory=dict)  # cause -> (said, true) P99 without it, s
    found: list = field(default_factory=list)
    problems: list = field(default_factory=list)


def strong(f):
    return f.severity != "info" and f.confidence >= 0.5


def score(seed, folder, plan=None):
    """Makes the incident of a seed (or of a plan), diagnoses it, compares with the truth."""
    plan = plan or draw(seed)
    truth = make(plan, folder)
    begun = time.process_time()
    said = diagnose(read_any([str(folder)]))
    out = Score(seed, plan.kind, cpu_s=time.process_time() - begun)
    assert said.failures == ()
    out.found = [(f.id, f.subject.rank, f.severity, round(f.confidence, 2)) for f in said.findings]
    firm = [f for f in said.findings if strong(f)]
    out.blamed = sorted({f.id for f in firm} & set(truth["must_not"]))
    told = [c for c in truth["claims"] if c["roots"]]
    tops = [f for f in firm if not f.id.startswith(ABOUT_FILES)]
    if told:
        every = all({f.id for f in firm} & set(c["roots"]) for c in told)
        out.root = every and tops[0] is said.findings[0] and tops[0].id in {id for c in told for id in c["roots"]}
        ranked = [c for c in told if c["rank"] is not None]
        if ranked:
            out.rank = all(any(f.id in c["roots"] and f.subject.rank == c["rank"] for f in firm) for c in ranked)
    for c in told:
        out.links += [linked(said.findings, causes, effect, c["rank"]) for causes, effect in c["links"]]
    asks = {id for c in truth["claims"] for id in c["ask"]}
    if asks:
        out.asked = asks <= {f.id for f in said.findings if f.cannot_tell}
    for c in told:
        for f in firm:
            numbers = counterfactual(f)
            if f.id in c["roots"] and f.subject.rank in (None, c["rank"]) and numbers:
                out.shares.setdefault(c["cause"], (numbers["excess_share_ratio"], truth["share"][c["cause"]]))
                true = truth["steps"][f"without {c['cause']}"]["p99_s"]
                out.tails.setdefault(c["cause"], (numbers["p99_without_s"], true))
    if out.root is False:
        out.problems.append("root")
    if out.rank is False:
        out.problems.append("rank")
    if out.asked is False:
        out.problems.append("not asked")
    out.problems += ["link"] * out.links.count(False)
    out.problems += [f"blames {id}" for id in out.blamed]
    out.problems += [f"share of {k} {a:.2f}, is {b:.2f}" for k, (a, b) in out.shares.items() if abs(a - b) > SHARE]
    out.problems += [f"p99 without {k} {a:.4f}, is {b:.4f}" for k, (a, b) in out.tails.items() if abs(a / b - 1) > TAIL]
    return out


def linked(findings, causes, effect, rank):
    """Whether the effect on that rank names one of the causes."""
    return any(f.id == effect and f.subject.rank in (None, rank) and set(causes) & set(f.implied_by) for f in findings)


def counterfactual(finding):
    for e in finding.evidence:
        if "p99_without_s" in e.text:
            return {k: float(v) for k, v in (p.split("=") for p in e.text.split())}
    return None


def table(scores):
    """One line per kind: incidents, root, rank, links, questions, blamed, shares, tails, median CPU seconds."""
    by_kind = defaultdict(list)
    for s in scores:
        by_kind[s.kind].append(s)
    lines = [f"{'kind':10}{'n':>5}{'root':>9}{'rank':>9}{'links':>9}{'asked':>7}{'blamed':>8}{'share':>9}{'p99':>9}{'cpu s':>7}"]
    for kind in [*KINDS, "all"]:
        some = scores if kind == "all" else by_kind[kind]
        shares = [abs(a - b) <= SHARE for s in some for a, b in s.shares.values()]
        tails = [abs(a / b - 1) <= TAIL for s in some for a, b in s.tails.values()]
        cells = [part(s.root for s in some), part(s.rank for s in some), part(x for s in some for x in s.links)]
        ends = f"{part(s.asked for s in some):>7}{sum(bool(s.blamed) for s in some):>8}{part(shares):>9}{part(tails):>9}"
        cpu = statistics.median(s.cpu_s for s in some) if some else 0.0
        lines.append(f"{kind:10}{len(some):>5}{cells[0]:>9}{cells[1]:>9}{cells[2]:>9}{ends}{cpu:>7.2f}")
    return "\n".join(lines)


def part(answers):
    asked = [a for a in answers if a is not None]
    return f"{sum(asked)}/{len(asked)}"


def ratio(answers):
    asked = [a for a in answers if a is not None]
    return sum(asked) / len(asked)


def test_a_plan_is_the_same_twice(tmp_path):
    first, second = (make(draw(3), tmp_path / name) for name in ("a", "b"))
    assert first == second
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / n).rglob("*") if p.is_file()} for n in ("a", "b"))
    assert one == two


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_a_planted_cause_is_found(seed, tmp_path):
    got = score(seed, tmp_path / "incident")
    assert got.problems == [], got


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "held"), [(k, h) for k, some in WITHHELD.items() for h in some])
def test_what_is_withheld_is_not_told(kind, held, tmp_path):
    """Every artefact in turn: what it alone proves becomes a question, and nobody else is blamed."""
    for seed in range(3):
        plan = replace(draw(seed, kind), withheld=frozenset(held.split()))
        got = score(seed, tmp_path / str(seed), plan)
        assert got.problems == [], got


@pytest.mark.soak
def test_planted_causes_are_found(tmp_path, capsys):
    scores = [score(seed, tmp_path / str(seed)) for seed in range(1000, 1000 + RANDOM)]
    wrong = [f"{s.seed} {s.kind} {s.problems} {s.found[:5]}" for s in scores if s.problems]
    with capsys.disabled():
        sys.stdout.write("\n".join(["", table(scores), *wrong, ""]))
    assert ratio(s.root for s in scores) >= 0.95
    assert ratio(s.rank for s in scores) >= 0.95
    assert ratio(x for s in scores for x in s.links) >= 0.8
    assert ratio(s.asked for s in scores) >= 0.95
    assert sum(bool(s.blamed) for s in scores) <= 0.01 * len(scores)
    assert not [s for s in scores if s.kind == "healthy" and s.blamed]
    assert ratio(abs(a - b) <= SHARE for s in scores for a, b in s.shares.values()) >= 0.95
    assert ratio(abs(a / b - 1) <= TAIL for s in scores for a, b in s.tails.values()) >= 0.95
