"""num.precision_regression and num.batch_variance."""

import json

import pytest

from load_samples import said

LOG = (
    "WARNING [vllm.py:1008] Auto-disabled DeepGemm for model_type=x. The scale format causes accuracy degradation.\n"
    "INFO [fp8.py:405] Using DEEPGEMM Fp8 MoE backend out of potential backends: ['DEEPGEMM', 'TRITON']\n"
)


def scores(on, off, questions=1319):
    return {"gsm8k.json": json.dumps({"set": {"fp8_on": on, "fp8_off": off}, "questions": questions})}


def test_a_drop_beyond_three_errors():
    found = said(scores([0.70, 0.71, 0.69], [0.80, 0.79, 0.81], 1000))
    finding = found["num.precision_regression"]
    assert list(found) == ["num.precision_regression"]
    assert finding.severity == "error"
    assert finding.value == pytest.approx(0.10)
    # binomial: sqrt(0.7 x 0.3 / 3000 + 0.8 x 0.2 / 3000) = 0.01111; spread: sqrt(2) x 0.01 / sqrt(3) = 0.00816
    assert finding.limit == pytest.approx(3 * 0.011106, rel=1e-3)
    assert finding.claim.startswith("fp8_on scores 0.7000 against 0.8000 of fp8_off")


@pytest.mark.parametrize(
    "files",
    [
        scores([0.7726, 0.7824, 0.7741], [0.7839, 0.7771, 0.7817]),
        scores([0.755], [0.781]),
        scores([0.60, 0.75, 0.68], [0.74, 0.82, 0.78], 100_000),
        {"s.json": json.dumps({"accuracy": {"a": 0.6, "b": 0.8}})},
    ],
    ids=["within-noise", "one-run-each", "spread-of-the-runs", "no-count-no-repeats"],
)
def test_no_regression(files):
    assert said(files) == {}


def test_sets_are_not_compared_with_each_other():
    body = {"set_1": {"on": [0.9, 0.91]}, "set_2": {"off": [0.5, 0.51]}, "questions": 1000}
    assert said({"s.json": json.dumps(body)}) == {}


def test_lines_that_contradict_each_other_are_named():
    finding = said({**scores([0.70, 0.71, 0.69], [0.80, 0.79, 0.81]), "server.log": LOG})["num.precision_regression"]
    assert "The log switches DeepGemm off and then chooses DEEPGEMM" in finding.claim
    assert finding.remedies[0].id == "num-fix-backend"


def test_such_lines_alone_cannot_tell():
    finding = said({"server.log": LOG})["num.precision_regression"]
    assert finding.cannot_tell
    assert finding.settle_with
    assert said({"server.log": LOG.replace("accuracy degradation", "longer start-up")}) == {}


TEST = "[INFO] Comparing BS=1 vs BS=N ...\n[FAIL] Prompt 0: Bitwise mismatch (abs diff=8.5e-02).\n BS=1 tokens: ['a']\n BS=N tokens: ['a']\n"


def test_bitwise_differences_between_batches():
    finding = said({"t.txt": TEST + "[PASS] Prompt 1: match.\n"})["num.batch_variance"]
    assert (finding.severity, finding.value) == ("warn", 0.085)
    assert "1 of 2 prompts" in finding.claim
    assert "tokens equal so far" in finding.claim
    assert "max_diff=0.085 same_tokens=True" in finding.evidence[0].text


def test_sampling_or_equal_numbers_are_no_variance():
    assert said({"t.txt": "temperature=0.8\n" + TEST}) == {}
    assert said({"t.txt": "Comparing BS=1 vs BS=N\n[PASS] Prompt 0: bitwise equal\n"}) == {}


def test_log_probabilities_of_one_prompt_in_two_batches():
    body = {"prompts": [{"prompt": "p", "bs1": [-0.5, -0.25], "bs32": [-0.5, -0.125]}]}
    assert said({"l.json": json.dumps(body)})["num.batch_variance"].value == pytest.approx(0.125)
    body["prompts"][0]["bs32"] = body["prompts"][0]["bs1"]
    assert said({"l.json": json.dumps(body)}) == {}


def harness(score, settings):
    return json.dumps({
        "results": {"gsm8k": {"alias": "gsm8k", "exact_match,strict-match": score, "exact_match_stderr,strict-match": 0.012}},
        "configs": {"gsm8k": {}}, "n-samples": {"gsm8k": {"original": 1319, "effective": 1319}},
        "config": {"model": "vllm", "model_args": settings},
    })


def test_files_of_a_harness_are_arms_by_their_settings():
    files = [("pretrained=m,dtype=bfloat16", 0.951), ("pretrained=m,dtype=bfloat16", 0.949),
             ("pretrained=m-FP8,dtype=auto", 0.891), ("pretrained=m-FP8,dtype=auto", 0.895)]
    finding = said({f"{i}.json": harness(v, a) for i, (a, v) in enumerate(files)})["num.precision_regression"]
    assert finding.value == pytest.approx(0.057)
    assert "2 + 2 runs of 1319 questions" in finding.claim


def test_other_models_are_no_arms():
    assert said({"a.json": harness(0.95, "pretrained=big"), "b.json": harness(0.61, "pretrained=small")}) == {}


TABLE = """vllm (pretrained=m,dtype={d}), gen_kwargs: (None), limit: None
|Tasks|Version|     Filter     |n-shot|  Metric   |   |Value |   |Stderr|
|-----|------:|----------------|-----:|-----------|---|-----:|---|-----:|
|gsm8k|      3|flexible-extract|     5|exact_match|x  |{v}|+-  |0.0060|
"""


@pytest.mark.parametrize(
    "files",
    [
        {"a.txt": TABLE.format(d="auto", v=0.95), "b.txt": TABLE.format(d="fp8", v=0.89)},
        {"a.txt": "1319/1319 [00:40<00:00]\nAccuracy: 0.951\n", "b.txt": "1319/1319 [00:40<00:00]\nAccuracy: 0.890\n"},
        {"a.json": '{"accuracy": 0.951, "num_questions": 1319}', "b.json": '{"accuracy": 0.89, "num_questions": 1319}'},
        {"a.csv": "kv_cache_dtype,correct,total\nauto,1254,1319\nfp8,1174,1319\n"},
        {"a.json": '[{"arm": "a", "correct": 1254, "total": 1319}, {"arm": "b", "correct": 1174, "total": 1319}]'},
    ],
)
def test_one_run_each_beyond_three_errors(files):
    finding = said(files)["num.precision_regression"]
    assert (finding.severity, finding.confidence) == ("error", 0.75)


@pytest.mark.parametrize(
    "files",
    [
        {"a.json": '{"temperature": 0.8, "bs1": [-1.1, -0.2], "bs32": [-1.2, -0.2]}'},
        {"a.json": '{"sampling_params": {"do_sample": true}, "bs1": [-1.1, -0.2], "bs32": [-1.2, -0.2]}'},
        {"a.csv": "batch_size,temperature,pos,logprob\n1,0.7,0,-0.5\n1,0.7,1,-0.6\n8,0.7,0,-0.51\n8,0.7,1,-0.6\n"},
    ],
)
def test_no_variance_where_sampling_is_on(files):
    assert "num.batch_variance" not in said(files)


@pytest.mark.parametrize(
    "document",
    [
        {"num_samples": 1000, "balancedness_before": 0.62, "balancedness_after": 0.93},
        {"total": 800, "used_ratio": 0.2, "free_ratio": 0.8},
        {"n": 1319, "accuracy": 0.95, "gpu_util": 0.5},
    ],
)
def test_other_shares_are_no_scores(document):
    assert said({"a.json": json.dumps(document)}) == {}


def test_files_that_name_the_same_arm_are_arms_of_their_own():
    def one(score):
        return json.dumps({"task": "gsm8k", "backend": "srt", "accuracy": score, "latency": 41.2, "other": {"num_questions": 1319}})

    assert said({"a.json": one(0.95), "b.json": one(0.88)})["num.precision_regression"].confidence == 0.75
    assert said({"a.json": one(0.95), "b.json": one(0.94)}) == {}
