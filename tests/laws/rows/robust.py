"""Wrappers that skip steps or parts of them, and that scale losses."""

import eqopt

from ..row import Evaluated, around, row


def is_large(value, norm):
    return ~(norm < 2.5)


ROWS = [
    row(
        lambda learning_rate=0.1: eqopt.Cautious(
            eqopt.AdamW(learning_rate, weight_decay=0.3)
        ),
        name="Cautious(AdamW)",
        learning_rate=0.05,
    ),
    row(
        lambda: eqopt.Cautious(eqopt.ScaleByLion(), "plus_one"),
        name="Cautious(ScaleByLion)",
    ),
    row(
        lambda learning_rate=0.1: eqopt.Cautious(eqopt.Signum(learning_rate), "none"),
        name="Cautious(Signum, none)",
        learning_rate=0.05,
    ),
    row(
        lambda weight_decay=0.3: eqopt.Cautious(
            eqopt.Muon(0.1, weight_decay=weight_decay, fallback=eqopt.Lion(0.1))
        ),
        name="Cautious(Muon)",
        weight_decay=0.1,
    ),
    *around(eqopt.SkipStep, rule=is_large),
    row(
        lambda sigma=1.0: Evaluated(
            eqopt.SkipStep(eqopt.Adam(0.01), eqopt.SigmaRule(4, sigma, 2))
        ),
        name="SkipStep(SigmaRule)",
        sigma=0.5,
    ),
    *around(eqopt.DynamicLossScale, init_scale=8.0, growth_interval=2),
    row(
        lambda **data: eqopt.DynamicLossScale(
            eqopt.SkipStep(eqopt.MultiSteps(eqopt.Adam(0.01), 2), is_large), **data
        ),
        name="DynamicLossScale(SkipStep(MultiSteps))",
        init_scale=4.0,
        growth_factor=4.0,
        backoff_factor=0.25,
        min_scale=0.5,
    ),
    row(
        lambda max_squared_norm=8.0: eqopt.MultiSteps(
            eqopt.Adam(0.01),
            2,
            should_skip_update_fn=eqopt.SkipLargeUpdates(max_squared_norm),
        ),
        name="MultiSteps(SkipLargeUpdates)",
        max_squared_norm=10.0,
    ),
    row(
        lambda: eqopt.MultiSteps(
            eqopt.Adam(0.01), 2, should_skip_update_fn=eqopt.SkipNotFinite()
        ),
        name="MultiSteps(SkipNotFinite)",
    ),
]
