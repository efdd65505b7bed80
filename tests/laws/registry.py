"""Every transformation once: the subjects of the laws.

A new transformation is one more row. Whatever is special about it stands in its row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp

import eqopt
from eqopt import AbstractTransformation


@dataclass(frozen=True)
class Row:
    """A subject.

    - `make`: builds it, from hyperparameters by name.
    - `data`: numeric hyperparameters with a value for each, other than the default.
    - `exempt`: laws that do not apply, by the name of the test, with the reason.
    """

    name: str
    make: Callable[..., AbstractTransformation]
    data: dict[str, float]
    exempt: dict[str, str]

    def __call__(self, **hyperparameters) -> AbstractTransformation:
        return self.make(**hyperparameters)


def is_matrix(params):
    """A mask that keeps biases and other vectors out."""
    return jax.tree.map(lambda p: p.ndim >= 2, params)


def halve(count):
    """A schedule that is a plain function."""
    return 0.1 / (1 + jnp.asarray(count, jnp.float32))


def one_or_two(step):
    return 1 + step % 2


def skip_some(updates, gradient_step, params):
    return gradient_step == 1, {"at": gradient_step}


def nested(learning_rate=0.01):
    return eqopt.Chain(
        eqopt.ClipByGlobalNorm(1.0),
        eqopt.Chain(eqopt.Masked(eqopt.Trace(0.9), is_matrix)),
        eqopt.AdamW(learning_rate, weight_decay=0.1, mask=is_matrix),
    )


def _row(make, /, *, name=None, exempt=None, **data):
    return Row(name or make.__name__, make, data, exempt or {})


def _around(wrapper, *, exempt=None, **arguments):
    """A wrapper round one stateless, one stateful and one nested transformation."""

    def make(inner):
        return lambda **data: wrapper(inner=inner(), **{**arguments, **data})

    return [
        _row(make(inner), name=f"{wrapper.__name__}({name})", exempt=exempt)
        for name, inner in {
            "SGD": lambda: eqopt.SGD(0.1),
            "Adam": lambda: eqopt.Adam(0.01),
            "nested": nested,
        }.items()
    ]


JOINED = {
    "test_state_is_sharded_like_parameters": "one vector of all parameters has no "
    "sharding to keep"
}
LINEAR = eqopt.schedules.Linear(0.1, 0.01, 5)

REGISTRY = [
    # building blocks
    _row(eqopt.Identity),
    _row(eqopt.SetToZero),
    _row(lambda step_size=0.5: eqopt.Scale(step_size), name="Scale", step_size=0.3),
    _row(lambda: eqopt.ScaleBySchedule(LINEAR), name="ScaleBySchedule"),
    _row(lambda: eqopt.ScaleBySchedule(halve), name="ScaleBySchedule(function)"),
    _row(
        lambda learning_rate=0.1: eqopt.ScaleByLearningRate(learning_rate),
        name="ScaleByLearningRate",
        learning_rate=0.02,
    ),
    _row(
        lambda: eqopt.ScaleByLearningRate(LINEAR, flip_sign=False),
        name="ScaleByLearningRate(schedule)",
    ),
    _row(lambda max_delta=0.1: eqopt.Clip(max_delta), name="Clip", max_delta=0.2),
    _row(
        lambda max_norm=0.5: eqopt.ClipByGlobalNorm(max_norm),
        name="ClipByGlobalNorm",
        max_norm=0.1,
    ),
    _row(eqopt.AddDecayedWeights, weight_decay=0.1),
    _row(
        lambda weight_decay=0.1: eqopt.AddDecayedWeights(weight_decay, is_matrix),
        name="AddDecayedWeights(mask)",
        weight_decay=0.3,
    ),
    _row(lambda decay=0.9: eqopt.Trace(decay), name="Trace", decay=0.8),
    _row(lambda: eqopt.Trace(0.9, nesterov=True), name="Trace(nesterov)"),
    # algorithms
    _row(eqopt.ScaleByAdam, b1=0.8, b2=0.9, eps=1e-3, eps_root=1e-3),
    _row(lambda: eqopt.ScaleByAdam(nesterov=True), name="ScaleByAdam(nesterov)"),
    _row(eqopt.ScaleByLion, b1=0.8, b2=0.9),
    _row(lambda: eqopt.ScaleByLion(mode="smooth"), name="ScaleByLion(smooth)"),
    _row(lambda: eqopt.ScaleByLion(mode="refined"), name="ScaleByLion(refined)"),
    _row(
        lambda learning_rate=0.1: eqopt.SGD(learning_rate),
        name="SGD",
        learning_rate=0.2,
    ),
    _row(
        lambda learning_rate=0.1, momentum=0.9: eqopt.SGD(
            learning_rate, momentum, True
        ),
        name="SGD(momentum)",
        learning_rate=0.2,
        momentum=0.5,
    ),
    _row(
        lambda learning_rate=0.01, **data: eqopt.Adam(learning_rate, **data),
        name="Adam",
        learning_rate=0.1,
        b1=0.5,
        b2=0.9,
        eps=1e-3,
    ),
    _row(
        lambda: eqopt.Adam(LINEAR, mu_dtype="float32", nu_dtype="float32"),
        name="Adam(schedule, float32 moments)",
    ),
    _row(
        lambda learning_rate=0.01, **data: eqopt.AdamW(learning_rate, **data),
        name="AdamW",
        learning_rate=0.1,
        weight_decay=0.3,
    ),
    _row(
        lambda learning_rate=0.01, **data: eqopt.Lion(learning_rate, **data),
        name="Lion",
        learning_rate=0.1,
        b1=0.5,
        b2=0.7,
        weight_decay=0.3,
    ),
    # structure
    _row(lambda: eqopt.Chain(), name="Chain()"),
    _row(nested, name="Chain(nested)", learning_rate=0.1),
    _row(
        lambda: eqopt.NamedChain(clip=eqopt.Clip(0.1), adam=eqopt.Adam(0.01)),
        name="NamedChain",
    ),
    *[
        _row(
            lambda inner=inner: eqopt.Masked(inner(), is_matrix), name=f"Masked({name})"
        )
        for name, inner in {
            "SGD": lambda: eqopt.SGD(0.1),
            "ScaleByAdam": lambda: eqopt.ScaleByAdam(),
            "ClipByGlobalNorm": lambda: eqopt.ClipByGlobalNorm(0.1),
            "nested": nested,
            "masked decay": lambda: eqopt.AddDecayedWeights(0.1, is_matrix),
        }.items()
    ],
    _row(lambda: eqopt.Freeze(is_matrix), name="Freeze"),
    # behaviour
    *_around(eqopt.MultiSteps, every_k_schedule=2),
    _row(
        lambda: eqopt.MultiSteps(
            eqopt.Adam(0.01),
            one_or_two,
            use_grad_mean=False,
            should_skip_update_fn=skip_some,
            accumulator_dtype=None,
        ),
        name="MultiSteps(schedule, sum, skip)",
    ),
    *_around(eqopt.ApplyIfFinite, max_consecutive_errors=2),
    *_around(eqopt.Lookahead, sync_period=2, slow_step_size=0.5),
    _row(
        lambda: eqopt.Lookahead(eqopt.Adam(0.01), 2, 0.5, reset_state=True),
        name="Lookahead(reset)",
    ),
    *_around(eqopt.Flatten, exempt=JOINED),
    _row(
        lambda: eqopt.MultiSteps(
            eqopt.ApplyIfFinite(eqopt.Lookahead(eqopt.Flatten(nested()), 2, 0.5), 2), 2
        ),
        name="all wrappers",
        exempt=JOINED,
    ),
]


def concrete_transformations() -> set[type]:
    """The classes of all public transformations that can be instantiated."""
    public = (getattr(eqopt, name) for name in dir(eqopt))
    return {
        cls
        for cls in public
        if isinstance(cls, type)
        and issubclass(cls, AbstractTransformation)
        and not eqx.is_array(cls)
        and not getattr(cls, "__abstractmethods__", None)
    }
