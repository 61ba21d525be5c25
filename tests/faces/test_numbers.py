import math

import pytest

from moexray.faces.numbers import human


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (772653711, "bytes", "736.9 MiB"),
        (1471026298, "bytes", "1.37 GiB"),
        (0, "bytes", "0 B"),
        (1023, "bytes", "1023 B"),
        (1024, "bytes", "1.0 KiB"),
        (1024**3 - 1, "bytes", "1.00 GiB"),
        (-5 * 1024**2, "bytes", "-5.0 MiB"),
        (3 * 1024**6, "bytes", "3,072.00 PiB"),
        (0.066, "s", "66.0 ms"),
        (0, "s", "0 s"),
        (12.5e-6, "s", "12.5 µs"),
        (3e-9, "s", "3.0 ns"),
        (0.99999, "s", "1.00 s"),
        (1.375, "s", "1.38 s"),
        (600, "s", "600.0 s"),
        (5400, "s", "1 h 30 min"),
        (-0.066, "s", "-66.0 ms"),
        (66, "ms", "66.0 ms"),
        (66_000_000, "ns", "66.0 ms"),
        (0.8, "ratio", "0.80"),
        (0, "ratio", "0.00"),
        (0.00123, "ratio", "0.0012"),
        (240, "count", "240"),
        (1234567, "count", "1,234,567"),
        (2.5, "count", "2.50"),
        (0.123456, "count", "0.123"),
        (12000, "tokens", "12,000 tokens"),
        (12, "", "12"),
        (None, "bytes", "unknown"),
        (math.nan, "s", "unknown"),
        (True, "count", "unknown"),
        (math.inf, "s", "infinite"),
        (-(10**400), "bytes", "-infinite"),
    ],
)
def test_human(value, unit, text):
    assert human(value, unit) == text
