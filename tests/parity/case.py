"""The kinds of cases for which eqopt and another library, or formulas, must agree."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import eqopt

from ..laws.row import Adapter


class Case(NamedTuple):
    """The same transformation in both libraries.

    - `extra`: a function of the parameters that gives extra arguments of `update`.
    - `rtol`: in float32, where there is a reason (stated in the row) for more than 1e-5.
    - `shapes`: of the leaves.
    - `dtypes`: those in which Optax gives anything but NaN.
    - `converts`: whether states are converted and training continues in the other
        library. At least one case for each kind of state does, with schedules, masks
        and momentum.
    """

    ours: Any
    theirs: Any
    extra: Callable[[Any], dict[str, Any]] = lambda params: {}
    rtol: float = 1e-5
    shapes: tuple[tuple[int, ...], ...] = ((3, 4), (4,), (), (2, 3, 2))
    dtypes: tuple[Any, ...] = (jnp.float32, jnp.bfloat16, jnp.float16)
    converts: bool = False


class ByHand(NamedTuple):
    """A transformation, and a function that computes its updates without eqopt.

    The function gets all gradients: matrices of this `shape`, or `gradients` by
    default.
    """

    ours: Any
    updates: Callable[[Any], Iterable[Any]]
    shape: tuple[int, int] | None = None


# Own arrays are matrices if they have two axes, and only these.
OF_TWO_AXES = {"weight_dimension_numbers": eqopt.groups.layer_matrices}


def is_matrix(params):
    return jax.tree.map(lambda p: p.ndim >= 2, params)


def tree_mask(params):
    """A mask that is a tree, fixed beforehand."""
    flags = [i % 2 == 0 for i in range(len(jax.tree.leaves(params)))]
    return jax.tree.unflatten(jax.tree.structure(params), flags)


# Schedules, ours and theirs.
COSINES = (
    eqopt.schedules.WarmupCosineDecay(0.0, 0.1, 3, 10, 0.01),
    optax.warmup_cosine_decay_schedule(0.0, 0.1, 3, 10, 0.01),
)
LINEARS = eqopt.schedules.Linear(0.1, 0.02, 7), optax.linear_schedule(0.1, 0.02, 7)

STACKED = ((3, 4), (4,), (), (2, 3, 2), (5, 2, 6))
# In Optax, the square of 1e-6 is zero in float16, and so is 1e-8 next to a root.
NOT_FLOAT16 = (jnp.float32, jnp.bfloat16)


def both(make_ours, make_theirs, /, *arguments, ours=None, theirs=None, **named):
    """A case from both constructors, which get the same arguments.

    `ours` and `theirs` are further arguments of one of them, by name. Of `COSINES` and
    `LINEARS`, each library gets its own schedule. The fields of a `Case`, such as
    `converts`, are passed by name.
    """
    fields = {name: named.pop(name) for name in Case._fields if name in named}

    def made(make, only, side):
        own = lambda x: x[side] if x is COSINES or x is LINEARS else x
        options = {name: own(x) for name, x in {**named, **(only or {})}.items()}
        return make(*map(own, arguments), **options)

    return Case(made(make_ours, ours, 0), made(make_theirs, theirs, 1), **fields)


def every_other_large(updates, gradient_step, params):
    del gradient_step, params
    norm = optax.tree.norm(updates)
    return norm > 5.0, {"norm": norm}


class Batched(Adapter):
    """Makes per-example gradients of `updates`, some of which are clipped."""

    def adapted(self, updates, params):
        return batch_of(updates), {}


def batch_of(updates):
    return jax.tree.map(lambda g: jnp.stack([g, -3 * g, 0.01 * g, 0 * g]), updates)


def batched(theirs):
    return optax.GradientTransformation(
        theirs.init, lambda g, s, p=None: theirs.update(batch_of(g), s, p)
    )


def downhill(ours, theirs, **arguments):
    """With a small step: uphill, steps in proportion to parameters grow beyond bounds."""
    return Case(
        eqopt.Chain(ours, eqopt.Scale(-0.01)),
        optax.chain(theirs, optax.scale(-0.01)),
        **arguments,
    )


def curved(params):
    """A loss whose Hessian is diagonal, so that any signs estimate it exactly."""
    quartic = lambda x: (x.astype(jnp.float32) ** 4 / 12 + x.astype(jnp.float32)).sum()
    value_fn = lambda p: sum(map(quartic, jax.tree.leaves(p)))
    return {"value_fn": value_fn, "obj_fn": value_fn}
