"""Wrappers."""

import functools

import optax

import eqopt

from ..case import LINEARS, Case, every_other_large


CASES = {
    "multi_steps": Case(
        eqopt.MultiSteps(eqopt.AdamW(0.1), 3), optax.MultiSteps(optax.adamw(0.1), 3)
    ),
    "multi_steps, sum": Case(
        eqopt.MultiSteps(eqopt.Adam(LINEARS[0]), 4, use_grad_mean=False),
        optax.MultiSteps(optax.adam(LINEARS[1]), 4, use_grad_mean=False),
    ),
    "multi_steps, schedule": Case(
        eqopt.MultiSteps(eqopt.Adam(0.1), lambda step: 1 + step),
        optax.MultiSteps(optax.adam(0.1), lambda step: 1 + step),
    ),
    "multi_steps, skip": Case(
        eqopt.MultiSteps(eqopt.Adam(0.1), 2, should_skip_update_fn=every_other_large),
        optax.MultiSteps(optax.adam(0.1), 2, should_skip_update_fn=every_other_large),
    ),
    "multi_steps, skip_large_updates": Case(
        eqopt.MultiSteps(
            eqopt.Adam(0.1), 2, should_skip_update_fn=eqopt.SkipLargeUpdates(25.0)
        ),
        optax.MultiSteps(
            optax.adam(0.1),
            2,
            should_skip_update_fn=functools.partial(
                optax.skip_large_updates, max_squared_norm=25.0
            ),
        ),
    ),
    "apply_if_finite": Case(
        eqopt.ApplyIfFinite(eqopt.Adam(0.1), 2),
        optax.apply_if_finite(optax.adam(0.1), 2),
    ),
    "flatten": Case(
        eqopt.Flatten(eqopt.AdamW(0.1)), optax.flatten(optax.adamw(0.1)), converts=True
    ),
    "flatten, norm": Case(
        eqopt.Flatten(eqopt.ClipByGlobalNorm(0.3)),
        optax.flatten(optax.clip_by_global_norm(0.3)),
    ),
    "conditionally_transform": Case(
        eqopt.ConditionallyTransform(eqopt.Adam(0.1), lambda step: step % 3 == 1),
        optax.conditionally_transform(optax.adam(0.1), lambda step: step % 3 == 1),
    ),
    "conditionally_mask": Case(
        eqopt.ConditionallyMask(
            eqopt.AdamW(0.1), lambda step, value: step * value < 4, True
        ),
        optax.conditionally_mask(
            optax.adamw(0.1), lambda step, value: step * value < 4, True
        ),
        extra=lambda params: {"value": 0.7},
    ),
}
