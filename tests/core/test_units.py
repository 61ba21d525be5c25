from moexray.core.sizes import BINARY_UNITS, DECIMAL_UNITS


def test_binary_units_mean_the_same_to_everyone():
    for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1):
        assert BINARY_UNITS[unit] == DECIMAL_UNITS[unit] == 1024**power
    assert BINARY_UNITS[""] == DECIMAL_UNITS["bytes"] == 1


def test_what_gb_means_depends_on_who_writes():
    for power, unit in enumerate(("kb", "mb", "gb", "tb"), 1):
        assert (BINARY_UNITS[unit], DECIMAL_UNITS[unit]) == (1024**power, 1000**power)
    assert DECIMAL_UNITS["gbyte"] == 10**9
