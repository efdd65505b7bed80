"""Aggregators: one update from the gradients of several elements or calls."""

import eqopt
from eqopt import aggregating

from ..row import INNER, PerExample, row


def processed(inner):
    """Round one transformation that takes every other call."""
    return lambda: PerExample(
        aggregating.Process(
            eqopt.Clip(1.0), aggregating.AverageIncrementallyUpdates(0, 2), inner()
        )
    )


NO_STATE = {
    "test_numbers_of_any_type": "one step needs no state, if Python says that it is one; "
    "an array may be any number"
}

ROWS = [
    row(
        lambda: PerExample(aggregating.AveragePerElementUpdates()),
        name="AveragePerElementUpdates",
    ),
    row(lambda: aggregating.AccumulateAvgUpdates(2), name="AccumulateAvgUpdates"),
    row(
        lambda: aggregating.AccumulateAvgUpdates(1),
        name="AccumulateAvgUpdates(1)",
        exempt=NO_STATE,
    ),
    row(
        lambda: PerExample(aggregating.AverageIncrementallyUpdates(0, 2)),
        name="AverageIncrementallyUpdates",
    ),
    row(
        lambda: PerExample(aggregating.PerElementMeanAndSumSqDiffGrads(0, 2)),
        name="PerElementMeanAndSumSqDiffGrads",
    ),
    row(
        lambda: PerExample(aggregating.PerElementMeanAndSumSqDiffGrads()),
        name="PerElementMeanAndSumSqDiffGrads(1)",
        exempt=NO_STATE,
    ),
    *(row(processed(inner), name=f"Process({name})") for name, inner in INNER.items()),
    *(
        row(
            lambda ema_decay=0.9, learning_rate=0.01, steps=steps: PerExample(
                aggregating.add_mean_variance_to_opt(
                    eqopt.Adam(learning_rate), ema_decay, 0, steps
                )
            ),
            name=f"add_mean_variance_to_opt({steps})",
            exempt=NO_STATE if steps == 1 else None,
            ema_decay=0.8,
            learning_rate=0.1,
        )
        for steps in (1, 2)
    ),
]
