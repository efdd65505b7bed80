"""A kernel that is traced once for all shapes gives each of them its own program."""

import collections
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import ClosedJaxpr, Literal

import eqopt
from eqopt import _kernels
from eqopt._polymorphic import Polymorphic

from .registry import law


# Squares, axes of length 1, and sizes that are equal or multiples of others.
SQUARES = [(4, 4), (2, 2)]
MATRICES = [(3, 5), (2, 4), (8, 4), *SQUARES]
SHAPES = [*MATRICES, (6, 1), (1, 2), (7,), (2,), (1,), (), (2, 3, 4)]


def program(opt, shapes):
    params = [jnp.ones(shape) for shape in shapes]
    arrays, others = eqx.partition(opt.init(params), eqx.is_array)

    def step(params, arrays):
        new = opt.step(params, eqx.combine(arrays, others), params)
        return eqx.filter(new, eqx.is_array)

    return jax.make_jaxpr(step)(params, arrays)


def written(closed):
    """A program in lines, with those of the functions that it calls."""
    numbers = collections.defaultdict(lambda: len(numbers))
    name = lambda x: x.val if isinstance(x, Literal) else numbers[x]
    names = lambda xs: [(str(name(x)), str(x.aval)) for x in xs]

    def of(value):
        if isinstance(value, ClosedJaxpr):
            return written(value)
        if isinstance(value, tuple):
            return [of(x) for x in value]
        return str(value)

    lines = [names(closed.jaxpr.constvars + closed.jaxpr.invars)]
    for eqn in closed.jaxpr.eqns:
        params = {k: of(x) for k, x in eqn.params.items()}
        lines.append(
            (names(eqn.outvars), eqn.primitive.name, params, names(eqn.invars))
        )
    return [*lines, names(closed.jaxpr.outvars)]


def without_copies(monkeypatch):
    monkeypatch.setattr(Polymorphic, "__call__", lambda self, *row: None)


@law()
def test_as_traced_for_each_shape(row, monkeypatch):
    found = program(row(), SHAPES)
    without_copies(monkeypatch)
    assert written(found) == written(program(row(), SHAPES))


def traces(opt, shapes, monkeypatch):
    """How often kernels are traced for a step."""
    calls, evaluate = [], _kernels._evaluate
    monkeypatch.setattr(
        _kernels, "_evaluate", lambda *args: calls.append(args) or evaluate(*args)
    )
    _kernels.kernel.cache_clear()
    program(opt, shapes)
    return len(calls)


class Plain(eqopt.AbstractStateless):
    equation: Callable
    fn: Callable | None = None

    def leafwise(self, state, params=None, **extra):
        return eqopt.Leafwise(self.equation)


def halve_some(g):
    return g / 2 if g.shape[0] == 8 else g


def halve_long(g):
    return g / 2 if g.shape[0] > 4 else g


def by_size(g):
    return g / g.size


@eqopt.equation(polymorphic=True)
def halve(g):
    return g / 2


@eqopt.equation(polymorphic=True)
def apply(g, *, fn):
    return fn(g)


polymorphic = eqopt.equation(polymorphic=True)


@pytest.mark.parametrize(
    ("opt", "count"),
    [
        (eqopt.Adam(0.1), 1),
        (eqopt.Adan(0.1, weight_decay=0.1), 1),
        (eqopt.Lion(0.1), 1),  # with an order
        (eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(0.1)), 1),
        (Plain(halve), 1),
        (Plain(eqopt.equation(halve_some)), len(MATRICES)),
        (Plain(apply, halve_some), len(MATRICES)),
    ],
    ids=str,
)
def test_number_of_traces(opt, count, monkeypatch):
    assert traces(opt, MATRICES, monkeypatch) == count


@pytest.mark.parametrize(
    ("equation", "factor"),
    [
        (eqopt.equation(halve_some), lambda x: 1 / 2 if len(x) == 8 else 1),
        (polymorphic(halve_long), lambda x: 1 / 2 if len(x) > 4 else 1),
        (polymorphic(by_size), lambda x: 1 / x.size),
        (halve, lambda x: 1 / 2),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_equations_that_depend_on_a_size(equation, factor):
    grads = [jnp.ones(shape) for shape in MATRICES]
    updates, _ = jax.jit(Plain(equation).update)(grads, None)
    for x in updates:
        assert jnp.allclose(x, factor(x))


def test_a_mistake_in_a_polymorphic_equation():
    """It is reported for the shape of the leaf."""
    wrong = Plain(polymorphic(lambda g: g[0]))
    with pytest.raises(ValueError, match=r"\[3, 5\]"):
        jax.jit(wrong.update)([jnp.ones((3, 5))], None)
