"""Building blocks."""

import eqopt

from ..row import LINEAR, halve, is_matrix, row


ROWS = [
    row(eqopt.Identity),
    row(eqopt.SetToZero),
    row(lambda step_size=0.5: eqopt.Scale(step_size), name="Scale", step_size=0.3),
    row(lambda: eqopt.ScaleBySchedule(LINEAR), name="ScaleBySchedule"),
    row(lambda: eqopt.ScaleBySchedule(halve), name="ScaleBySchedule(function)"),
    row(
        lambda learning_rate=0.1: eqopt.ScaleByLearningRate(learning_rate),
        name="ScaleByLearningRate",
        learning_rate=0.02,
    ),
    row(
        lambda: eqopt.ScaleByLearningRate(LINEAR, flip_sign=False),
        name="ScaleByLearningRate(schedule)",
    ),
    row(lambda max_delta=0.1: eqopt.Clip(max_delta), name="Clip", max_delta=0.2),
    row(
        lambda max_norm=0.5: eqopt.ClipByGlobalNorm(max_norm),
        name="ClipByGlobalNorm",
        max_norm=0.1,
    ),
    row(eqopt.AddDecayedWeights, weight_decay=0.1),
    row(
        lambda weight_decay=0.1: eqopt.AddDecayedWeights(weight_decay, is_matrix),
        name="AddDecayedWeights(mask)",
        weight_decay=0.3,
    ),
    row(lambda decay=0.9: eqopt.Trace(decay), name="Trace", decay=0.8),
    row(lambda: eqopt.Trace(0.9, nesterov=True), name="Trace(nesterov)"),
]
