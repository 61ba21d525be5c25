"""Remedies of the routing subject: data only."""

from __future__ import annotations

from moexray.core.finding import Remedy

__all__ = ["REMEDIES"]

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "re-place-experts",
        "Place the experts anew on the same slots: {predicted}. SGLang: --init-expert-location with a "
        "physical_to_logical_map; vLLM: --enable-eplb with num_redundant_experts 0.",
        "Start with the previous map (trivial or linear placement).",
        "No extra memory; the weights move once. A plan made on other traffic is about as good as none.",
    ),
    Remedy(
        "redundant-experts",
        "Add {slots} redundant experts per layer ({memory}): {predicted}. SGLang: "
        "--ep-num-redundant-experts {slots}; vLLM: --eplb-config num_redundant_experts.",
        "Set the number of redundant experts back to 0.",
        "Replicas take memory from the KV cache; every rearrangement moves weights.",
    ),
    Remedy(
        "router-policy",
        "Last resort: a capacity limit with reroute or a selection bias in the router.",
        "Switch the policy off: detach() of the handle, or MOEXRAY_OFF=router.",
        "It changes outputs: measure the change first. Temperature or a tiny salt do not change the load.",
        call='moexray.runtime.router.attach(model, "bias:rate=0.02")',
        needs="A transformers model in this process, of a release and router family that were tested: the "
        "handle's reason says if not. On a GPU capacity:mode=reroute is refused, it serves on the host.",
        verify="First on recorded scores: moexray whatif routing PATH --policy bias:rate=0.02. Then "
        "effects() of the handle (flips), and balancedness over windows with the policy and with plain in "
        "turn.",
    ),
    Remedy(
        "rebalance-now",
        "Rebalance on the mix after the change ({step} on): {predicted}.",
        "Load the placement from before.",
        "Score the plan on later windows than it was made on.",
    ),
    Remedy(
        "rebalance-oftener",
        "Shorten the interval of balancing (vLLM step_interval and window_size, SGLang "
        "--eplb-rebalance-num-iterations) so that a new mix is followed sooner.",
        "Set the interval back.",
        "Each rearrangement costs time: compare it with the gain per step first.",
    ),
    Remedy(
        "split-over-replicas",
        "Split an expert's tokens over its replicas by their ranks' load, not equally.",
        "Go back to equal split.",
        "Needs redundant experts and an engine that can split unequally.",
    ),
    Remedy(
        "swap-replica",
        "Swap slot {slot} (expert {expert} on rank {rank}) with slot {other} (expert {partner} on rank "
        "{partner_rank}): balancedness {before} -> {after}.",
        "Swap the two slots back.",
        "Swap weights, phy2log and log2phy together.",
    ),
    Remedy(
        "recompute-balance",
        "Recompute mean/max over EP ranks per layer from counts and alert on that; update vLLM to a build "
        "that reduces over ranks.",
        "None needed: it changes a figure, not the engine.",
        "Alerts that were tuned on the old figure must be set anew.",
    ),
    Remedy(
        "divide-counts",
        "Divide the counts by {m} before they are compared with tokens; ratios such as balancedness stay.",
        "None needed.",
        "Record which setting multiplies them ({suspects}); another layout has another factor.",
    ),
    Remedy(
        "cap-tokens-per-rank",
        "Limit the tokens of a step: --max-num-batched-tokens or --chunked-prefill-size to {tokens} or less.",
        "Set the old limit again.",
        "Long prompts take more steps; balance the experts to win the throughput back.",
    ),
    Remedy(
        "route-in-fp32",
        "Choose experts on FP32 scores and break ties by lowest index; round after the choice.",
        "Go back to the rounded scores.",
        "Outputs of the changed tokens move towards the FP32 reference.",
    ),
    Remedy(
        "replay-routing",
        "Replay the recorded choice of one engine in the other, or align the precision of the router "
        "(FP32 scores, same order of softmax and top-k).",
        "Switch the replay off.",
        "Rebalancing does not help: the loads are nearly equal.",
    ),
    Remedy(
        "router-noise-off",
        "Switch router noise or jitter off at inference (eval mode), or seed it by batch id.",
        "Switch it on again for training.",
        "Results recorded with the noise cannot be reproduced.",
    ),
    Remedy(
        "avoid-dropping-kernel",
        "Stop using the kernel or version that drops results of expert {expert}; bisect the version.",
        "Select the kernel again once it is fixed.",
        "Answers given meanwhile are wrong.",
    ),
)
