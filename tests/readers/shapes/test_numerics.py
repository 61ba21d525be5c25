import json

import pytest

from load_samples import read


def scores(run):
    return [(r["arm"], r["score"], r["questions"]) for r in run.rows("scores")]


EXPECTED = [("bf16", 0.78, 1000), ("bf16", 0.79, 1000), ("fp8", 0.7, 1000), ("fp8", 0.71, 1000)]
RECORDS = [{"precision": a, "accuracy": s, "n_samples": n} for a, s, n in EXPECTED]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.json", json.dumps({"bf16": [0.78, 0.79], "fp8": [0.7, 0.71], "questions": 1000})),
        ("s.json", json.dumps({"gsm8k": {"bf16": {"scores": [0.78, 0.79]}, "fp8": {"scores": [0.7, 0.71]}}, "n": 1000})),
        ("s.json", json.dumps({"runs": RECORDS})),
        ("s.jsonl", "\n".join(map(json.dumps, RECORDS))),
        ("s.csv", "precision,accuracy,questions\n" + "".join(f"{a},{s},{n}\n" for a, s, n in EXPECTED)),
        ("s.csv", "precision,accuracy,questions\n" + "".join(f"{a},{s * 100:g},{n}\n" for a, s, n in EXPECTED)),
    ],
    ids=["lists", "nested", "records", "json-lines", "csv", "percent"],
)
def test_scores_of_all_layouts(name, text):
    assert [(a, round(s, 6), n) for a, s, n in scores(read({name: text}))] == EXPECTED


def test_sets_keep_their_arms_apart():
    body = {"set_1": {"on": [0.7, 0.71], "off": [0.78, 0.79]}, "set_2": {"on": [0.69, 0.68]}, "questions": 500}
    rows = read({"s.json": json.dumps(body)}).rows("scores")
    assert {(r["set"], r["arm"]) for r in rows} == {("set_1", "on"), ("set_1", "off"), ("set_2", "on")}


def test_numbers_that_are_no_scores_are_left_alone():
    assert not read({"s.json": json.dumps({"a": [3.5, 700.0], "questions": 10})}).rows("scores")
    assert not read({"s.json": json.dumps({"a": [0.1, 0.2], "b": [0.3, 0.4]})}).rows("scores")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.json", json.dumps({"prompts": [{"prompt": "p", "bs1": [-0.5, -0.25], "bs32": [-0.5, -0.125]}]})),
        ("l.json", json.dumps({"bs1": {"p": [-0.5, -0.25]}, "bs32": {"p": [-0.5, -0.125]}})),
        ("l.csv", "prompt,pos,bs1_logprob,bs32_logprob\np,0,-0.5,-0.5\np,1,-0.25,-0.125\n"),
        ("l.csv", "prompt,batch_size,logprob\np,1,-0.5\np,1,-0.25\np,32,-0.5\np,32,-0.125\n"),
    ],
)
def test_log_probabilities_by_batch(name, text):
    rows = read({name: text}).rows("logprobs")
    assert {(r["arm"], r["prompt"], tuple(r["values"])) for r in rows} == {
        ("bs1", "p", (-0.5, -0.25)),
        ("bs32", "p", (-0.5, -0.125)),
    }


TEST = """[INFO] Comparing BS=1 vs BS=N ...
  [FAIL] Prompt 0 Step 0: Bitwise mismatch (abs diff=8.5e-02).
         BS=1 tokens: ['a', 'b']
         BS=N tokens: ['a', 'b']
  [FAIL] Prompt 1 Step 0: Bitwise mismatch (abs diff=1.3e-06).
         BS=1 tokens: ['a', 'b']
         BS=N tokens: ['a', 'c']
  [PASS] Prompt 3: tokens and logprobs match exactly.
"""


def test_output_of_a_batch_test():
    rows = read({"t.txt": TEST}).rows("mismatch")
    assert [(r["passed"], r["diff"], r["same_tokens"]) for r in rows] == [
        (False, 0.085, True),
        (False, 1.3e-06, False),
        (True, None, None),
    ]


def test_other_tests_that_fail_are_not_meant():
    assert not read({"t.txt": "[FAIL] test_x: diff=3\n[PASS] test_y: ok\n"}).rows("mismatch")
