"""Matrices of pairs as heat maps."""

from comm_samples import said


def test_a_matrix_names_its_sides_and_keeps_holes():
    d = said({"a2a_send.csv": "src\\dst,0,1,2\n0,5,7,\n1,90,110,500\n2,1,2,3\n"})
    (chart,) = d.exhibits["balance"]
    assert (chart["line"], chart["axis"]) == ("sender", "receiver")
    assert chart["values"] == [[5, 7, None], [90, 110, 500], [1, 2, 3]]
    assert chart["layers"] == chart["columns"] == [0, 1, 2]
    assert chart["source"] == "a2a_send.csv"
    assert "sent" in chart["title"]


def test_a_large_matrix_is_cut_to_whole_rows():
    n = 200
    rows = [",".join(["src\\dst", *map(str, range(n))]), *(",".join([str(i), *["3"] * n]) for i in range(n))]
    (chart,) = said({"a2a_send.csv": "\n".join(rows) + "\n"}).exhibits["balance"]
    assert len(chart["values"]) == len(chart["layers"]) == 100
    assert len(chart["columns"]) == n
