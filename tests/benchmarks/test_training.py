"""The table of what `python -m benchmarks.training` measured."""

import math

from benchmarks.training.report import Result, Run, read, table


def test_tables_are_read_again():
    rates = (0.0032, 1.0, 10.0, 0.0001)
    shares = [(1e-7, 0.00012), (0.5, 0.049), (math.nan, 1.57), (0.2, math.nan)]
    results = [Result("SGD", rates, [Run(*pair) for pair in shares])]
    written = table(results)
    assert "| 0 / 0.012 % (0.0032) | 50 % / 4.9 % (1) |" in written
    assert "| NaN / 157 % (10) | 20 % / NaN (0.0001) |" in written
    assert table(read(written)) == written
