"""Laws: permuting ranks permutes the answer; a transposed store of a legal matrix is legal; cutting
the front of the ring does not change the verdict; order of lines and files does not matter.
"""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from comm_samples import dump, entry, ids, said, watchdog

SMALL = settings(max_examples=25)


def subject(d, id):
    f = next((f for f in d.findings if f.id == id), None)
    return None if f is None else f.subject.rank


@SMALL
@given(size=st.integers(3, 8), odd=st.integers(0, 7), lag=st.integers(0, 3), data=st.data())
def test_permuting_ranks_permutes_the_answer_of_logs(size, odd, lag, data):
    odd %= size
    order = data.draw(st.permutations(range(size)))
    groups = json.dumps({"PG 3 (GUID 21)": list(range(size))})

    def text(guilty, ranks):
        return "".join(watchdog(r, 50 - lag if r == guilty else 50) for r in ranks if lag or r != guilty)

    plain = said({"g.json": groups, "w.log": text(odd, range(size))})
    moved = said({"g.json": groups, "w.log": text(order[odd], order)})
    id_ = "comm.desync" if lag else "comm.missing_rank"
    assert plain.verdict == moved.verdict == id_
    assert (subject(plain, id_), subject(moved, id_)) == (odd, order[odd])


@SMALL
@given(
    size=st.integers(2, 6), late=st.integers(0, 5), cuts=st.lists(st.integers(0, 12), min_size=6, max_size=6), data=st.data(),
    kind=st.sampled_from(["missing", "healthy", "op", "size"]),
)  # fmt: skip
def test_cutting_rings_and_permuting_ranks(size, late, cuts, data, kind):
    late %= size
    order = data.draw(st.permutations(range(size)))
    world = {"0": ("default_pg", list(range(size)))}

    def ring(guilty):
        last = 15 if guilty and kind == "missing" else 16
        out = [entry(s) for s in range(1, last)]
        stuck = "completed" if kind in ("healthy", "size") or (guilty and kind == "missing") else "started"
        more = {"op": "all_gather"} if guilty and kind == "op" else {}
        if guilty and kind == "size":
            more["sizes"] = ((4, 9), (4, 9))
        return [*out, entry(last, state=stuck, **more)]

    whole = said({f"d_rank_{r}": dump(ring(r == late), world) for r in range(size)})
    cut = said({f"d_rank_{order[r]}": dump(ring(r == late)[cuts[r] :], world) for r in range(size)})
    assert whole.verdict == cut.verdict
    if kind == "healthy":
        assert whole.verdict == "none"
    elif size > 2 and whole.findings:
        assert order[whole.findings[0].subject.rank] == cut.findings[0].subject.rank
        assert whole.findings[0].subject.rank == late


@SMALL
@given(rows=st.integers(2, 6).flatmap(lambda n: st.lists(st.lists(st.integers(0, 999), min_size=n, max_size=n), min_size=n, max_size=n)),
       transposed=st.booleans(), data=st.data())  # fmt: skip
def test_a_legal_exchange_is_legal_in_any_order_and_one_change_is_found(rows, transposed, data):
    size = len(rows)
    order = data.draw(st.permutations(range(size)))

    def csv(head, cell, into):
        lines = [f"{head}_rank," + ",".join(f"{into}{j}" for j in range(size))]
        lines += [f"{i}," + ",".join(str(cell(i, j)) for j in range(size)) for i in order]
        return "\n".join(lines) + "\n"

    def received(change):
        def by_receiver(i, j):
            return rows[j][i] + (change if (j, i) == (0, 1) else 0)

        if transposed:
            return csv("src", lambda i, j: by_receiver(j, i), "dst")
        return csv("dst", by_receiver, "src")

    sent = csv("src", lambda i, j: rows[i][j], "dst")
    legal = said({"sent.csv": sent, "received.csv": received(0)})
    assert ids(legal, strong=True) == []
    if any(v for r in rows for v in r):
        wrong = said({"sent.csv": sent, "received.csv": received(7)})
        assert ids(wrong, strong=True) == ["a2a.count_mismatch"]
        assert "Rank 0 sent" in wrong.findings[0].claim


@SMALL
@given(ins=st.lists(st.integers(1, 99), min_size=2, max_size=6), data=st.data(), off=st.integers(-3, 3))
def test_totals_decide_whatever_the_split(ins, data, off):
    size = len(ins)
    total = sum(ins)
    points = sorted(data.draw(st.lists(st.integers(0, total), min_size=size - 1, max_size=size - 1)))
    outs = [b - a for a, b in zip([0, *points], [*points, total], strict=True)]
    outs[0] = max(0, outs[0] + off)
    world = {"0": ("ep", list(range(size)))}
    d = said({f"d_rank_{r}": dump([entry(1, op="all_to_all", sizes=((ins[r],), (outs[r],)))], world) for r in range(size)})
    assert ("a2a.count_mismatch" in ids(d)) == (sum(outs) != total)
