from __future__ import annotations

import pytest

from moexray.faces.cli.screen import as_markdown, as_text


def finding(id, rank=None, **over):
    return {
        "id": id, "severity": "warn", "confidence": 0.9, "claim": f"Claim of {id}.", "subject": {"rank": rank},
        "evidence": [
            {"source": "a.log", "where": f"line {n}", "text": f"request_bytes={n << 30} count=7"} for n in range(1, 6)
        ],
        "implied_by": [], "settle_with": [],
        "remedies": [{"action": f"Action {n} of {id}.", "undo": f"Undo {n}.", "caveats": "Caveat."} for n in (1, 2)],
        **over,
    }


def document(*findings, **over):
    edges = [{"from": c, "to": f["id"], "text": ""} for f in findings for c in f["implied_by"]]
    return {
        "verdict": findings[0]["id"] if findings else "none", "findings": list(findings),
        "inputs": [{"path": "a.log", "reader": "text", "rows": 1, "notes": []}], "skipped": [], "chain": edges,
        "ruled_out": [], **over,
    }


def acts(id, number):
    return [{"action": f"Action {n} of {id}.", "undo": "", "caveats": ""} for n in range(1, number + 1)]


def test_the_verdict_comes_first_with_its_best_remedies_and_proof():
    lines = as_text(document(finding("mem.x", remedies=acts("mem.x", 4)))).splitlines()
    assert lines[0] == "verdict: mem.x  [warn, confidence 0.90]"
    assert lines[1] == "  Claim of mem.x."
    assert [line for line in lines if "  do: " in line] == ["  do: Action 1 of mem.x.", "  do: Action 2 of mem.x."]
    assert "  ... 2 further remedies: --all" in lines
    assert [line for line in lines if line.startswith("  | ")] == [
        "  | a.log:1: request 1.00 GiB, count 7", "  | a.log:2: request 2.00 GiB, count 7",
    ]
    assert "  ... 1 further remedy: --all" in as_text(document(finding("mem.x", remedies=acts("mem.x", 3))))


def test_a_further_cause_has_one_remedy_and_one_piece_of_evidence():
    text = as_text(document(finding("mem.x"), finding("ep.y")))
    rest = text[text.index("also: ep.y") :]
    assert rest.count("  do: ") == 1
    assert rest.count("  | ") == 1
    assert "shortened: --all" in rest


def test_a_consequence_points_to_its_cause_and_keeps_its_proof_for_all():
    story = document(finding("mem.x"), finding("ep.y", implied_by=["mem.x"], settle_with=["a trace"]))
    rest = as_text(story)[as_text(story).index("also: ep.y") :]
    assert "follows from: mem.x" in rest
    assert rest.count("  do: ") == 1
    assert "  | " not in rest
    assert "would settle" not in rest
    assert "would settle it: a trace" in as_text(story, whole=True)


def test_the_chain_stands_under_the_claim():
    lines = as_text(document(finding("a.a"), finding("b.b", implied_by=["a.a"]))).splitlines()
    assert lines[2] == "chain: a.a -> b.b"


@pytest.mark.parametrize(("claim", "told"), [
    ("Short one. Two.", "Short one. Two."),
    ("The first of 1.5 GiB ends here. " + "The second is long " * 20, "The first of 1.5 GiB ends here."),
    ("One sentence that never ends " * 15, "One sentence that never ends " * 9 + "One sentence ..."),
])
def test_a_further_claim_is_cut_where_a_sentence_ends(claim, told):
    text = as_text(document(finding("mem.x"), finding("ep.y", claim=claim)))
    shown = " ".join(text[text.index("also: ep.y") :].split("do:")[0].split("\n", 1)[1].split())
    assert shown == told


def test_all_shows_all_raw_and_with_undo():
    text = as_text(document(finding("mem.x"), finding("ep.y")), whole=True)
    assert text.count("  do: ") == 4
    assert text.count("undo: Undo") == 4
    assert text.count("request_bytes=") == 10
    assert "shortened" not in text


def test_an_id_told_before_is_told_briefly_with_its_rank():
    long = "The history is cut. " * 30
    text = as_text(document(finding("mem.x", 0, claim=long), finding("mem.x", 1, claim=long)))
    rest = text[text.index("also: mem.x") :]
    assert "(rank 1) The history" in rest
    assert "  do: " not in rest
    assert len(rest) < 500


def test_a_rank_that_the_claim_names_is_not_told_twice():
    assert "(rank" not in as_text(document(finding("mem.x", 3, claim="It is rank 3.")))
    assert "(rank 3) It is rank 33." in as_text(document(finding("mem.x", 3, claim="It is rank 33.")))


def test_evidence_has_dates_for_clock_times_and_no_digits_that_say_nothing():
    quote = {"source": "t.json", "where": "step 3", "text": "free_calls=1.35714 from_s=1793324141.832 steps=14"}
    text = as_text(document(finding("mem.x", evidence=[quote])))
    assert "| t.json, step 3: free calls 1.357, from 2026-10-30 01:35:41.832 UTC, steps 14" in text


def test_chains_that_only_cut_a_longer_one_short_are_left_out():
    story = document(finding("a.a"), finding("b.b", implied_by=["a.a"]), finding("c.c", implied_by=["b.b", "a.a"]),
                     finding("d.d", implied_by=["a.a"]))
    assert [line for line in as_text(story).splitlines() if line.startswith("chain: ")] == [
        "chain: a.a -> b.b -> c.c", "chain: a.a -> d.d",
    ]
    assert "- chain: `a.a` -> `b.b` -> `c.c`" in as_markdown(story)


def test_ruled_out_ids_are_told_once_and_all_with_all():
    out = [finding("mem.x", rank) for rank in range(3)]
    assert as_text(document(ruled_out=out)).count("ruled out: ") == 1
    assert "ruled out: mem.x (3 times): Claim" in as_text(document(ruled_out=out))
    assert as_text(document(ruled_out=out), whole=True).count("ruled out: ") == 3
    many = [finding(f"mem.{letter}") for letter in "abcdef"]
    assert "... and 2 more ruled out" in as_text(document(ruled_out=many))


def test_a_quoted_line_stays_as_it_is():
    quote = [{"source": "a.log", "where": "", "text": "ERROR size_bytes=1024 went wrong"}]
    assert "  | a.log: ERROR size_bytes=1024 went wrong" in as_text(document(finding("mem.x", evidence=quote)))


def test_many_pairs_are_cut():
    quote = [{"source": "a.log", "where": "top", "text": " ".join(f"k{n}_s={n}" for n in range(12))}]
    text = as_text(document(finding("mem.x", evidence=quote)))
    assert "a.log, top: k0 0 s, k1 1.00 s" in text
    assert "k5 5.00 s, ..." in " ".join(text.replace("|", "").split())
    assert "k6" not in text


@pytest.mark.parametrize(("number", "words"), [(1, "1 record from 1 file"), (0, "0 records from 0 files")])
def test_numbers_agree_with_their_nouns(number, words):
    inputs = [{"path": "a", "reader": "text", "rows": 1, "notes": []}] * number
    assert f"read: {words}\n" in as_text(document(inputs=inputs)) + "\n"


def test_nothing_wrong_and_nothing_usable_say_what_to_give_next():
    assert as_text(document()).startswith("verdict: none (nothing wrong")
    assert "docs/capture.md" in as_text(document())
    empty = as_text(document(inputs=[]))
    assert empty.startswith("no verdict: ")
    assert "a server log" in empty
    assert "no verdict" not in as_text(document(finding("input.empty"), inputs=[]))


def test_skipped_files_beyond_ten_are_counted():
    skipped = [{"path": f"{n}.bin", "reason": "unknown"} for n in range(12)]
    assert "... and 2 more files skipped" in as_text(document(skipped=skipped))
    assert "11.bin" in as_text(document(skipped=skipped), whole=True)
    assert "11.bin" in as_markdown(document(skipped=skipped), whole=True)


def test_markdown_tells_what_was_seen_and_keeps_each_entry_in_its_line():
    evil = "a.log\n## heading"
    seen = [{"what": "waiting", "text": "3 requests\nwait", "evidence": []}]
    text = as_markdown(document(finding("mem.x", claim="c\n# d"), seen=seen, skipped=[{"path": evil, "reason": evil}]))
    assert "- seen, not judged: waiting: 3 requests wait" in text.splitlines()
    assert not [line for line in text.splitlines() if line.startswith(("## heading", "# d", "wait"))]
