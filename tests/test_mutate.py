"""The changes that `python -m tests.mutate` makes, on a small function."""

import numpy as np

from . import mutate


SAMPLE = '''
@equation(elementwise=True)
def heavy_ball(g: "at most 1", mu, nu, *, decay=0.5):
    """Returns 2 slots."""
    if decay > 1:
        raise ValueError(f"{decay} must be < {1}")
    mu = decay * mu + g  # a comment with `*`, and “quotes”
    nu = nu - (-g)
    u = mu if mu <= 3 else 3
    return u, mu, nu
'''


def heavy_ball(source):
    """The results of the function in `source`, for a value on each side of the bound."""
    space = {"equation": lambda **keywords: lambda fn: fn}
    exec(source, space)
    run = space["heavy_ball"]
    return np.array([run(1.0, 2.0, 7.0), run(4.0, 2.0, 7.0), run(2.0, 2.0, 7.0)])


def test_changes():
    expected = heavy_ball(SAMPLE)
    found = {}
    for change in mutate.changes_of(SAMPLE):
        source = change.apply(SAMPLE)
        assert change.old in SAMPLE and source != SAMPLE
        # Documentation, comments and errors stay as they are.
        assert source.startswith(SAMPLE.partition("decay=")[0])
        assert "“quotes”" in source or change.new == "pass"
        found[change.kind, change.old, change.new] = heavy_ball(source)
    same = [key for key, results in found.items() if np.array_equal(results, expected)]
    # The bound itself is the result on either side.
    assert same == [("comparison", "mu <= 3", "(mu < 3)")]
    assert set(found) == {
        ("default", "0.5", "0.25"),
        ("slot", "mu = decay * mu + g", "pass"),
        ("slot", "nu = nu - (-g)", "pass"),
        ("slot", "return u, mu, nu", "return u, nu, mu"),
        ("operator", "decay * mu + g", "(decay * mu - g)"),
        ("operator", "decay * mu", "(decay / mu)"),
        ("operator", "nu - (-g)", "(nu + -g)"),
        ("sign", "-g", "(g)"),
        *same,
        ("constant", "3", "4"),
    }
