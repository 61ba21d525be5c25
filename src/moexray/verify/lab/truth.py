"""What is true of an incident of the lab, and whether a diagnosis says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moexray.verify.lab.cluster import Measured
    from moexray.verify.lab.traffic import Traffic

__all__ = ["HOT_RANK", "LATE_RANK", "judge", "truth_of"]

HOT_RANK, LATE_RANK = 0, 1  # the rank that the hot experts lie on; the one that comes late
MEMORY = {"cause": "fragmented arena", "ids": ["mem.fragmentation"]}
SKEW = {"cause": "hot experts on one rank", "ids": ["ep.skew"], "rank": HOT_RANK}
PEER = {"cause": "a peer that comes late", "ids": ["comm.straggler_wait"], "rank": LATE_RANK}
CAUSES: dict[str, list[dict[str, Any]]] = {
    "frag": [MEMORY], "skew": [SKEW], "both": [MEMORY, SKEW], "late": [PEER],
}  # fmt: skip
VERDICTS = {  # the id at the top: a planted cause, or what the incident's traffic did to a placement
    "frag": ["mem.fragmentation"], "skew": ["ep.skew", "ep.drift"],
    "both": ["mem.fragmentation", "ep.skew", "ep.drift"], "late": ["comm.straggler_wait"],
}  # fmt: skip
NOT_PLANTED = {  # comm.slow_transfer is real where other programs keep gloo waiting for a core
    "frag": ["ep.skew", "ep.drift"], "skew": ["mem.fragmentation", "mem.alloc_stall"], "both": [],
    "late": ["ep.skew", "ep.drift", "mem.fragmentation", "mem.alloc_stall"],
}  # fmt: skip


def truth_of(incident: str, engine: str, traffic: Traffic, recorded: Measured, onset: int) -> dict[str, Any]:
    """The document beside the artefacts.

    Args:
        incident: Which.
        engine: Which.
        traffic: Its prompts.
        recorded: The recorded steps.
        onset: Number of the first step of the incident.
    """
    rows = recorded.rows[onset:].sum(axis=0)
    return {
        "incident": incident,
        "engine": engine,
        "causes": CAUSES[incident],
        "verdicts": VERDICTS[incident],
        "not_planted": NOT_PLANTED[incident],
        "coupling": {"from": "ep.skew", "to": "mem.fragmentation", "rank": HOT_RANK,
                     "why": "a rank's work buffers are as large as the rows that it receives"}
        if incident == "both" else None,
        "hot_domain": traffic.hot if SKEW in CAUSES[incident] else None,
        "identical_prompts": SKEW in CAUSES[incident] and traffic.identical,
        "onset": {"step": onset, "time_ns": int(recorded.begin_ns[onset])},
        "modes": [
            {"mode": "usual", "from_ns": int(recorded.begin_ns[0]), "to_ns": int(recorded.begin_ns[onset])},
            {"mode": incident, "from_ns": int(recorded.begin_ns[onset]), "to_ns": int(recorded.end_ns[-1])},
        ],
        "rows_max_to_mean": [round(float(r.max() / r.mean()), 3) for r in rows],
        "moves": [int(n) for n in recorded.moves.sum(axis=0)],
    }  # fmt: skip


def judge(diagnosis: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    """Whether the planted causes and their coupling were named, and what was missed or made up.

    Returns:
        named_right, and wrong: sentences, empty where it is right.
    """
    told = [f for f in diagnosis["findings"] if f["severity"] != "info" and f["confidence"] >= 0.5]
    wrong = []
    if diagnosis["verdict"] not in truth["verdicts"]:
        wrong.append(f"the verdict is {diagnosis['verdict']}, not one of {', '.join(truth['verdicts'])}")
    for cause in truth["causes"]:
        rank = cause.get("rank")
        if not any(f["id"] in cause["ids"] and rank in (None, f["subject"]["rank"]) for f in told):
            wrong.append(f"{cause['cause']} was not named ({', '.join(cause['ids'])})")
    link = truth["coupling"]
    if link and not any(
        f["id"] == link["to"] and f["subject"]["rank"] == link["rank"] and link["from"] in f["implied_by"]
        for f in told
    ):
        wrong.append(f"{link['from']} was not named as a cause of {link['to']} on rank {link['rank']}")
    wrong += [f"{f['id']} was named and not planted" for f in told if f["id"] in truth["not_planted"]]
    return {"named_right": not wrong, "wrong": wrong}
