"""A row of the registry, and what rows are made from."""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp

import eqopt
from eqopt import AbstractTransformation
from eqopt._trees.leaves import parameters
from eqopt._trees.stored import load


@dataclass(frozen=True, eq=False)
class Row:
    """A transformation to test.

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

    @property
    def subject(self) -> type[AbstractTransformation]:
        """The class of the transformation."""
        opt = self()
        return type(opt.inner if isinstance(opt, Adapter) else opt)


def is_matrix(params):
    """A mask that excludes biases and other vectors."""
    return jax.tree.map(lambda p: p.ndim >= 2, params)


def matrix_or_other(params):
    """Labels of groups."""
    return jax.tree.map(lambda p: "matrix" if p.ndim >= 2 else "other", params)


def halve(count):
    """A schedule that is a plain function."""
    return 0.1 / (1 + jnp.asarray(count, jnp.float32))


def one_in_two(step):
    return step % 2 == 0


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


# The second one contains Adam.
INNER = {"SGD": lambda: eqopt.SGD(0.1), "nested": nested}


def row(make, given=None, /, *, at=None, name=None, exempt=None, **data):
    """A row for `make`, which always gets the arguments `given`.

    `at` is a learning rate, if `make` has no default for it.
    """

    def made(**data):
        first = [] if at is None else [data.pop("learning_rate", at)]
        return make(*first, **{**(given or {}), **data})

    return Row(name or make.__name__, made, data, exempt or {})


def around(wrapper, *, exempt=None, **arguments):
    """Two rows: the wrapper around SGD, and around a nested chain."""

    def make(inner):
        return lambda **data: wrapper(inner=inner(), **{**arguments, **data})

    return [
        row(make(inner), name=f"{wrapper.__name__}({name})", exempt=exempt)
        for name, inner in INNER.items()
    ]


JOINED = dict.fromkeys(
    ("test_a_compiled_init_on_explicit_axes", "test_state_is_sharded_like_parameters"),
    "one vector of all parameters has no sharding to keep",
)
# A key gives other normal numbers in float64. The law also has rows without noise.
OTHER_NOISE = {"test_float64": "float64 noise is other noise than float32 noise"}
IN_TURNS = dict.fromkeys(
    (
        "test_equal_matrices_are_computed_at_once",
        "test_own_stacks_are_separate_matrices",
        "test_the_order_of_leaves_does_not_matter",
    ),
    "in each step another leaf has its turn",
)
OF_LEAVES = {
    "test_own_stacks_are_separate_matrices": "limits a whole leaf, which may be a stack"
}
PATHS_WITHIN = dict.fromkeys(
    ("test_parameters_are_found", "test_parameters_are_inferred"),
    "what is stored has paths within: see `test_storage`",
)
LINEAR = eqopt.schedules.Linear(0.1, 0.01, 5)


class Adapter(AbstractTransformation):
    """Calls `inner` with other gradients, and with more arguments."""

    _loads = "nothing"

    inner: AbstractTransformation

    def adapted(self, updates, params):
        """The gradients, and the further arguments."""
        raise NotImplementedError

    def init(self, params):
        return self.inner.init(params)

    def update(self, updates, state, params=None, **extra):
        updates, more = self.adapted(updates, params)
        return self.inner.update(updates, state, params, **{**extra, **more})

    def step(self, grads, state, params, **extra):
        grads, more = self.adapted(grads, params)
        return self.inner.step(grads, state, params, **{**extra, **more})

    def eval_params(self, state, params):
        return self.inner.eval_params(state, params)


class Evaluated(Adapter):
    """Passes a loss, its gradient, and logits."""

    def adapted(self, updates, params):
        params = load(params)
        value_fn = lambda params: 1 + eqopt.tree.norm(params, squared=True)
        grad_fn = lambda params: parameters(eqx.filter_grad(value_fn)(params))
        return updates, {
            "value": value_fn(params),
            "grad": eqopt.tree.conj(grad_fn(params)),
            "value_fn": value_fn,
            "grad_fn": grad_fn,
            "max_logits": jnp.array([4.0]),
        }


class PerExample(Adapter):
    """Turns each gradient into a batch of three, as if from three examples."""

    def adapted(self, updates, params):
        return jax.tree.map(lambda g: jnp.stack([g, -g / 2, g / 4]), updates), {}


def evaluated(make, *arguments, **keywords):
    """A function like `make` of its data, whose result is inside `Evaluated`."""
    return lambda **data: Evaluated(make(*arguments, **{**keywords, **data}))
