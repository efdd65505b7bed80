"""Wrappers."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh

import eqopt

from ..row import (
    INNER,
    JOINED,
    PATHS_WITHIN,
    around,
    is_matrix,
    nested,
    one_in_two,
    one_or_two,
    row,
    skip_some,
)


# The laws use one device. `test_layouts.py` tests what happens on several.
ALONE = Mesh(np.array(jax.devices()[:1]), ("data",))
# Wrappers with branches for the whole inner state. `Offload` goes outside these.
BRANCHING = {
    *("ApplyIfFinite", "ConditionallyMask", "ConditionallyTransform"),
    *("DynamicLossScale", "Lookahead", "MultiSteps", "SkipStep"),
}
OUTSIDE = {
    **PATHS_WITHIN,
    "test_a_nan_that_is_left_out_leaves_no_trace": "it goes outside what has branches",
    "test_a_compiled_init_on_explicit_axes": "it goes outside `StoreState`: own tests",
    "test_state_is_sharded_like_parameters": "it goes outside `StoreState`: own tests",
}
NOT_THE_MESH = dict.fromkeys(
    (
        "test_a_compiled_init_on_explicit_axes",
        "test_explicit_axes",
        "test_inside_shard_map",
        "test_layouts_of_every_kind",
        "test_state_is_sharded_like_parameters",
    ),
    "it shards the state over an axis of its own, in another mesh than that of this law",
)
NOT_ITS_AXIS = dict.fromkeys(
    (
        "test_apart_inside_shard_map",
        "test_a_compiled_init_on_explicit_axes",
        "test_explicit_axes",
        "test_gradients_apart_inside_shard_map",
        "test_inside_shard_map",
    ),
    "the mesh of this law does not have the axis that it divides matrices over",
)
NOT_THE_MESH["test_copies"] = NOT_ITS_AXIS["test_copies"] = (
    "a mesh holds devices, which cannot be copied"
)
FLAT = {
    **JOINED,
    **dict.fromkeys(
        (
            *("partly_trained", "test_init_of_the_whole", "test_missing_in_some_steps"),
            "test_no_gradient_no_change",
        ),
        "all parameters given to `init` are one vector, so each needs a gradient",
    ),
}

ROWS = [
    *around(eqopt.MultiSteps, every_k_schedule=2),
    row(
        lambda: eqopt.MultiSteps(
            eqopt.Adam(0.01),
            one_or_two,
            use_grad_mean=False,
            should_skip_update_fn=skip_some,
            accumulator_dtype=None,
        ),
        name="MultiSteps(schedule, sum, skip)",
    ),
    *around(eqopt.ApplyIfFinite, max_consecutive_errors=2),
    *around(eqopt.Lookahead, sync_period=2, slow_step_size=0.5),
    row(
        lambda: eqopt.Lookahead(eqopt.Adam(0.01), 2, 0.5, reset_state=True),
        name="Lookahead(reset)",
    ),
    *around(eqopt.ConditionallyTransform, should_transform_fn=one_in_two),
    *around(eqopt.ConditionallyMask, should_transform_fn=one_in_two),
    *around(eqopt.SplitRealAndImaginary),
    *around(eqopt.Scheduled),
    row(
        lambda momentum=0.9: eqopt.Scheduled(
            eqopt.Chain(
                eqopt.ClipByGlobalNorm(one_or_two),
                eqopt.SGD(
                    0.1, momentum=eqopt.schedules.Linear(momentum, momentum / 2, 2)
                ),
            )
        ),
        name="Scheduled(schedules)",
        momentum=0.8,
    ),
    *[
        row(
            lambda scale=1.5, inner=inner: eqopt.Project(
                inner(), functools.partial(eqopt.projections.l2_ball, scale=scale)
            ),
            name=f"Project({name})",
            scale=1.0,
        )
        for name, inner in INNER.items()
    ],
    row(
        lambda: eqopt.Project(
            eqopt.Adam(0.01), eqopt.projections.l2_sphere, mask=is_matrix
        ),
        name="Project(mask)",
    ),
    *around(eqopt.Flatten, exempt=FLAT),
    *around(eqopt.Offload, min_size=1, exempt=OUTSIDE),
    *around(eqopt.ZeRO1, mesh=ALONE, exempt=NOT_THE_MESH),
    row(
        lambda: eqopt.DistributeMatrices(eqopt.Muon(0.01), mesh=ALONE),
        name="DistributeMatrices",
        exempt=NOT_ITS_AXIS,
    ),
    row(
        lambda: eqopt.MultiSteps(
            eqopt.ApplyIfFinite(eqopt.Lookahead(eqopt.Flatten(nested()), 2, 0.5), 2), 2
        ),
        name="all wrappers",
        exempt=FLAT,
    ),
]
