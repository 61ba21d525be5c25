"""What the verdicts of the routing subject mean: data only."""

from __future__ import annotations

from moexray.core.verdicts.verdict import Verdict

__all__ = ["VERDICTS"]

_COUNTS = "tokens per expert or EP rank (expert load dump, recorder file, table)"

VERDICTS: tuple[Verdict, ...] = (
    Verdict(
        "ep.drift",
        "The routing changed at a point in time, and a placement that fitted no longer does.",
        "Two windows running lie off the mix before by more than the sampling floor, and balancedness after "
        "is lower than before by more than 0.1, from at least 0.80.",
        "The load was uneven from the start (ep.skew alone); the old mix returns in the next window; windows "
        "are too short; only warm-up rows change.",
        ("Rebalance on the new mix.", "Shorten the balancing interval.", "Split unequally over replicas."),
        (_COUNTS + " over time", "placement"),
    ),
    Verdict(
        "ep.skew",
        "One EP rank gets clearly more tokens than the mean and sets the pace of its layer.",
        "Balancedness = mean/max of tokens over EP ranks < 0.80 in a layer, over so many tokens that chance "
        "alone would give more than 0.95; warm-up rows set aside, experts mapped by the placement.",
        "Too few tokens; only a logged balancedness; uneven requests with even expert counts.",
        ("Re-place the experts on the same slots.", "Add redundant experts.", "Change the router last."),
        (_COUNTS, "EP size", "placement"),
        ("router-policy",),
    ),
    Verdict(
        "ep.metric_wrong_axis",
        "The logged balancedness is taken over layers instead of ranks and says nothing on balance.",
        "Recomputed from counts, the logged value fits mean/max over layers within 0.01 and misses that over "
        "ranks by > 0.05. Without counts: info, by version only.",
        "The logged value agrees with mean/max over ranks.",
        ("Recompute from counts.", "Update the engine."),
        ("EPLB step lines", _COUNTS),
    ),
    Verdict(
        "ep.counts_multiplied",
        "Counts are a whole multiple of the truth.",
        "layer total / (tokens x top-k) is one integer >= 2, the same in every layer; compared with the "
        "sizes of data, tensor and expert parallelism.",
        "The factor varies over layers; tokens or top-k are unknown.",
        ("Divide by the factor; ratios stay valid.",),
        (_COUNTS, "tokens and top-k of the window"),
    ),
    Verdict(
        "ep.duplicate_replica",
        "Two replicas of one expert lie on the same rank; one is wasted.",
        "A logical expert occurs twice among the slots of one rank in one layer.",
        "The two slots belong to different layers or ranks.",
        ("Swap one replica with an expert of another rank.",),
        ("placement (physical_to_logical_map) with the EP size",),
    ),
    Verdict(
        "ep.skew_to_oom",
        "The hot rank ran out of memory because of its tokens.",
        "The rank that fails is the rank with most tokens, and bytes per token x its excess over the mean is "
        "at least what was missing (request - free).",
        "Other ranks fail, too; the excess does not cover what was missing.",
        ("Limit the tokens of a step.", "Balance the experts."),
        ("out-of-memory record with its rank", _COUNTS, "bytes of activation per token"),
        ("router-policy",),
    ),
    Verdict(
        "num.router_ties",
        "Rounding before top-k makes ties and so other experts.",
        "The top-k sets of FP32 scores and of scores rounded to BF16 differ, and every changed token has a "
        "margin below the rounding step.",
        "No set changes: margins are large.",
        ("Choose on FP32 scores, ties by lowest index.",),
        ("router logits in FP32",),
    ),
    Verdict(
        "num.router_divergence",
        "Two engines choose different experts for the same tokens, through small numeric differences.",
        "Top-k sets of the same tokens differ while loads are nearly equal; where scores are recorded they "
        "differ slightly and the flips sit at small margins.",
        "Same engine and settings; equal scores with flips at large margins (num.router_noise).",
        ("Replay the recorded choice.", "Align the router's precision."),
        ("top-k dumps of both engines", "router scores"),
    ),
    Verdict(
        "num.router_noise",
        "Router noise is active at inference.",
        "Recorded scores are equal within 0.001 but top-k sets differ, and most flips have large margins.",
        "Flips only among near-ties.",
        ("Switch the noise off, or seed it by batch id.",),
        ("top-k and logits of two runs on the same input",),
    ),
    Verdict(
        "num.expert_output_dropped",
        "An expert receives tokens whose results never arrive.",
        "Combined is 0 (or less than routed) for the same expert on all ranks while routed is above 0.",
        "Routed is 0: a cold expert.",
        ("Stop using that kernel; bisect the version.",),
        ("routed and combined counts",),
    ),
)
