from load_samples import page, read
from moexray.diagnose.serving.series import series_of_scrapes


def state(i):
    return page({0: {"running": 4, "waiting": i, "tokens": 100 * i, "itl": (0.5 * i, 10 * i)}})


def test_three_scrapes_make_series():
    rows = series_of_scrapes(read({f"{i}.prom": state(i) for i in range(3)}))
    lines = {r["name"].partition(",")[0]: r for r in rows}
    assert lines["requests waiting"]["y"] == [0, 1, 2]
    assert lines["tokens per window"]["y"] == [100, 100]
    assert lines["mean time per token"]["y"] == [0.05, 0.05]
    assert lines["tokens per window"]["x"] == [1.0, 2.0]
    assert lines["requests running"]["x_unit"] == "step"


def test_two_scrapes_do_not():
    assert series_of_scrapes(read({f"{i}.prom": state(i) for i in range(2)})) == []
