"""Law 3, in general: a hyperparameter may be a number of any type, or an eps of zero."""

import dataclasses
import functools
import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from .registry import REGISTRY, law as of_rows
from .subjects import all_finite, both, grads_of, params_of
from .test_laws import law


def rebuilt(node, convert):
    """The transformation, constructed again with other numbers in its fields."""
    if type(node) in (tuple, list, dict):
        items = dict(node.items() if isinstance(node, dict) else enumerate(node))
        new = {key: rebuilt(x, convert) for key, x in items.items()}
        if all(new[key] is x for key, x in items.items()):
            return node
        return new if isinstance(node, dict) else type(node)(new.values())
    if not isinstance(node, eqx.Module):
        return node
    changed = {}
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        new = convert(node, field, value) if is_number else rebuilt(value, convert)
        if new is not value:
            changed[field.name] = new
    if not changed:
        return node
    takes = inspect.signature(type(node)).parameters.values()
    by_name = {p.name for p in takes if p.kind is not p.VAR_POSITIONAL}
    if {field.name for field in dataclasses.fields(node)} <= by_name:
        return dataclasses.replace(node, **changed)
    # Its `__init__` takes other arguments than its fields.
    places = lambda n: [getattr(n, name) for name in changed]
    return eqx.tree_at(places, node, [*changed.values()])


def admitted(number, otherwise, node, field):
    """`number`, unless it is out of the range of the field: 0.999 may round to 1."""
    try:
        dataclasses.replace(node, **{field.name: number})
    except ValueError:
        return otherwise
    return number


def as_numpy(node, field, value):
    return np.int64(value) if isinstance(value, int) else np.float64(value)


def as_small_numpy(node, field, value):
    small = np.int16(value) if isinstance(value, int) else np.float16(value)
    return admitted(small, value, node, field)


def as_small_arrays(node, field, value):
    if field.metadata.get("static"):
        return value
    dtype = jnp.uint16 if isinstance(value, int) else jnp.bfloat16
    return admitted(jnp.asarray(value, dtype), value, node, field)


def as_constants(node, field, value):
    """Arrays with values, even while JAX traces the construction."""
    with jax.ensure_compile_time_eval():
        return as_small_arrays(node, field, value)


def as_integers(node, field, value):
    """A small integer that the field accepts instead of a float."""
    if isinstance(value, int):
        return value
    fitting = (n for n in (1, 0, 2) if admitted(n, None, node, field) is not None)
    return next(fitting, value)


def as_whole_floats(node, field, value):
    is_count = isinstance(value, int)
    return value if is_count else float(as_integers(node, field, value))


def as_integer_arrays(node, field, value):
    number = as_integers(node, field, value)
    is_static = field.metadata.get("static")
    is_new = isinstance(number, int) and not isinstance(value, int) and not is_static
    return jnp.asarray(number) if is_new else value


# Integers are last, so that the next law finds their program in the cache.
KINDS = [as_numpy, as_small_numpy, as_small_arrays, as_integer_arrays, as_integers]


@functools.lru_cache(maxsize=2)
def program(row, kind=None):
    """`init` and `update` as JAX traces them, and the types they give."""
    opt = row() if kind is None else rebuilt(row(), kind)

    def one_step(params):
        state = opt.init(params)
        return state, opt.update(grads_of(params, 0), state, params)

    return eqx.filter_make_jaxpr(one_step)(params_of())


def types(closed):
    return [(x.shape, x.dtype, x.weak_type) for x in closed.out_avals]


def changes(row, kind):
    opt = row()
    return rebuilt(opt, kind) is not opt


@law
@pytest.mark.costly
def test_numbers_of_any_type(row):
    """The types of updates and state do not depend on the type of the numbers."""
    expected, expected_shapes, _ = program(row)
    for kind in KINDS:
        if changes(row, kind):
            made, shapes, _ = program(row, kind)
            assert shapes == expected_shapes, kind.__name__
            assert types(made) == types(expected), kind.__name__


def as_unsigned(node, field, value):
    """Such a number has no negative, and 1 minus it may wrap."""
    number = as_integers(node, field, value)
    is_new = isinstance(number, int) and not isinstance(value, int)
    return np.uint8(number) if is_new else value


@law
@pytest.mark.parametrize("kind", [as_integers, as_unsigned])
@pytest.mark.costly
def test_integers_are_floats(row, kind):
    """They give the same program as the float of the same value."""
    if changes(row, kind):
        made, _, _ = program(row, kind)
        expected, _, _ = program(row, as_whole_floats)
        assert str(made) == str(expected)


@law
@pytest.mark.costly
def test_constants_of_a_trace(row):
    """Made inside `jit` of arrays with values, which are checked, and not traced."""
    opt = row()

    def make():
        rebuilt(opt, as_constants)
        return 0

    jax.make_jaxpr(make)()


@law
def test_weakly_typed_parameters_leave_no_weak_state(row):
    """After a step, nothing is weakly typed: in `init`, the next step would compile."""
    if row.name.startswith("from_optax"):
        pytest.skip("its state is made by Optax")
    weak = jax.tree.map(lambda p: jnp.full(p.shape, 0.5), params_of())
    assert all(p.weak_type for p in jax.tree.leaves(weak))
    state = eqx.filter_eval_shape(row().init, weak)
    assert not any(getattr(x, "weak_type", False) for x in jax.tree.leaves(state))


@pytest.mark.parametrize("is_step", [True, False])
def test_weakly_typed_parameters_stay_so(is_step):
    """`jnp.array(1.0)` is weakly typed. Otherwise, the second step compiled again."""
    opt = eqopt.AdamW(0.1)
    params = {"scale": jnp.array(1.0), "gains": jnp.full((2, 3), 0.5)}
    params["half"] = jnp.ones(3, jnp.bfloat16)

    @jax.jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def train_step(params, state):
        if is_step:
            return opt.step(params, state, params)
        updates, state = opt.update(params, state, params)
        return eqopt.apply_updates(params, updates), state

    state = opt.init(params)
    for _ in range(2):
        params, state = train_step(params, state)
    weak = {name: x.weak_type for name, x in params.items()}
    assert weak == {"scale": True, "gains": True, "half": False}
    assert jnp.allclose(params["scale"], 0.8, atol=1e-3)


def epsilons(row):
    """The names of its hyperparameters, also without a value in the registry."""
    names = {field.name for field in dataclasses.fields(row.subject)} | {*row.data}
    return [name for name in sorted(names) if name.startswith("eps")]


def without_eps(row):
    """With each of its epsilons at zero that may be, and with all of them.

    The row must pass them on.
    """
    may_be = {}
    for name in epsilons(row):
        try:
            yield row(**{name: 0.0})
        except ValueError as error:
            assert name in str(error)
        except TypeError:
            assert name not in row.data
        else:
            may_be[name] = 0.0
    if len(may_be) > 1:
        yield row(**may_be)


@of_rows(names={row.name for row in REGISTRY if epsilons(row)})
def test_zero_over_zero_is_zero(row):
    """In the first steps, later (RAdam divides from step 6 on), and in some columns."""
    params = params_of()
    zero = jax.tree.map(lambda p: 0 * p, params)
    column = jax.tree.map(lambda p: p.at[..., :1].set(0) if p.ndim else p, params)
    steps = zero, zero, column, zero, grads_of(params, 0), column, zero, column
    for opt in without_eps(row):
        state = opt.init(params)
        for grads in steps:
            (updates, state), _ = both(opt, grads, state, params)
            assert all_finite(updates)
