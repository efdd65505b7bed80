"""The expressions of the page on a public benchmark, against NumPy and float64.

The tests train with the code on the page itself.
"""

import dataclasses
import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..docs.pages import DOCS, blocks, prose
from ..interpreter import interpreted
from ..methods.matrix.aurora import aurora_by_hand
from ..methods.matrix.muown import muown_by_hand
from ..methods.matrix.normuon import normuon_by_hand
from ..methods.matrix.psgd import psgd_by_hand
from ..methods.matrix.shampoo import shampoo_by_hand
from ..methods.matrix.soap import soap_by_hand
from .by_hand import adam_by_hand, one_at_a_time
from .matrices import TABLES, newton_schulz


pytestmark = pytest.mark.slow


PAGE = DOCS / "benchmark_rows.md"
STEPS = 20
LATE = 14  # from which on the record averages
# At the first gradient, most of what SOAP divides is rounding errors. They stay small.
SOAP_EPS = 1e-4
SIMPLE = TABLES["simple"][0]


#
# What is trained
#


class Model(eqx.Module):
    """Two hidden matrices, vectors, and what the benchmark leaves to Adam."""

    embedding: eqx.nn.Embedding
    blocks: list[eqx.nn.Linear]
    head: eqx.nn.Linear

    def __init__(self, shapes):
        keys = jax.random.split(jax.random.key(0), 4)
        self.embedding = eqx.nn.Embedding(5, 4, key=keys[0])
        first, second = (
            eqx.nn.Linear(inputs, outputs, key=key)
            for (outputs, inputs), key in zip(shapes, keys[2:], strict=True)
        )
        # For longer rows, an orthogonal update is relatively short, so the floor on the
        # norms of updates applies to the first matrix.
        factors = jnp.linspace(1, 9, len(first.weight))[:, None]
        first = eqx.tree_at(lambda x: x.weight, first, factors * first.weight)
        self.blocks = [first, second]
        self.head = eqx.nn.Linear(4, 5, use_bias=False, key=keys[1])


# For the leaves of the model, in their order.
GROUPS = ("embedding", "hidden", "rest", "hidden", "rest", "head")

TALL_AND_WIDE = (6, 4), (3, 5)
# The eigenvectors of a longer side would not be defined by a first gradient.
SQUARE = (4, 4), (3, 3)


def leaves(model):
    return [*map(np.asarray, jax.tree.leaves(model))]


@functools.cache
def quadratic(shape):
    """The minimum, and what multiplies each side of the distance to it."""
    rng = np.random.default_rng(sum(shape))
    roots = [rng.normal(size=(n, n)) for n in shape]
    sides = [x @ x.T / len(x) + 0.1 * np.eye(len(x)) for x in roots]
    return rng.normal(size=shape), *sides


def gradient(p):
    minimum, left, *right = quadratic(p.shape)
    g = left @ (p - minimum)
    return g @ right[0] if right else g


#
# The rows by hand: functions of a parameter and its gradient, or of the lists of all
#


def descending(direction, rate, decay=0.0):
    update = one_at_a_time(direction)
    return lambda p, g: p - rate * (update(g) + decay * p)


def on_the_hyperball(direction, rate):
    update = one_at_a_time(direction)

    def step(p, g):
        u, radius = update(g), np.linalg.norm(p)
        if np.linalg.norm(u) > 0:
            u = u / np.linalg.norm(u)
        turned = p - rate * radius * u
        return radius * turned / np.linalg.norm(turned)

    return step


def adam(b1, b2, eps=1e-8):
    return functools.partial(adam_by_hand, b1=b1, b2=b2, eps=eps)


def muon(grads, beta=0.95):
    """With Nesterov momentum, corrected for its start at zero."""
    m = 0
    for t, g in enumerate(grads, 1):
        m = beta * m + (1 - beta) * g
        mean = beta * m / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta**t)
        yield newton_schulz(mean, SIMPLE)


def shaped(direction):
    """Longer for tall matrices."""

    def updates(grads):
        seen = []

        def observed():
            for g in grads:
                seen.append(g.shape)
                yield g

        for u in direction(observed()):
            rows, columns = seen[-1]
            yield u * np.sqrt(max(1, rows / columns))

    return updates


def normuon(grads):
    return normuon_by_hand(grads, 0.95, 0.95, SIMPLE, of_long_side=True)


def muon_squared(grads, b=0.95, eps=1e-10):
    m = v = 0
    for t, g in enumerate(grads, 1):
        m, v = b * m + (1 - b) * g, b * v + (1 - b) * g**2
        mean = b * m / (1 - b ** (t + 1)) + (1 - b) * g / (1 - b**t)
        yield newton_schulz(mean / (np.sqrt(v / (1 - b**t)) + eps), SIMPLE)


def spectral_descent(grads):
    for g in grads:
        yield newton_schulz(g, SIMPLE)


def muown():
    rows = TABLES["polar_express_8"][0]
    rows, started = [*rows, *[rows[-1]] * (12 - len(rows))], []

    def step(p, g):
        if not started:
            of_all = lambda grads: muown_by_hand(p, grads, lambda t: 0.00325, rows=rows)
            started.append(one_at_a_time(of_all))
        return started[0](g)

    return step


def with_adam(hidden, embedding=0.3, head=1 / 320, rest=0.01, decay=0.0):
    """Steps for all parameters, by group. `hidden` makes steps for hidden matrices."""
    rates = {"embedding": embedding, "head": head, "rest": rest}
    steps = [
        hidden()
        if group == "hidden"
        else descending(adam(0.8, 0.95, 1e-10), rates[group], decay)
        for group in GROUPS
    ]
    return lambda *lists: [step(p, g) for step, p, g in zip(steps, *lists, strict=True)]


def aurora(grads):
    return aurora_by_hand(grads, b1=0.95, iterations=2, power=0.5)


def floored(direction, rate=0.0375, floor=0.35):
    update = one_at_a_time(direction)

    def step(p, g):
        u = update(g)
        return p - rate * u * max(1, floor * np.linalg.norm(p) / np.linalg.norm(u))

    return step


def psgd(grads):
    return psgd_by_hand(grads, (False, False), True, 0.95, 0.1, 1e-9, 2.0, 10.0)


def soap(**options):
    """`shampoo_beta` is `b2`."""
    return soap_by_hand(0.9, 1, b1=0.95, b2=0.9, eps=SOAP_EPS, **options)


def soap_muon(grads):
    for u in soap(skips_first=False)(grads):
        yield newton_schulz(u, SIMPLE)


def shampoo(beta, frequency, **options):
    options = {"frequency": frequency, "graft_b2": beta} | options
    return shampoo_by_hand(beta, "adam", frequency, 0.9, 0.9, **options)


def record(rate=0.0375, floor=0.3825, outward=0.5, decay=0.025):
    update = one_at_a_time(shaped(soap_muon))

    def step(p, g):
        u = update(g)
        for i, row in enumerate(p):
            if np.linalg.norm(u[i]) > 0:
                ratio = np.linalg.norm(row) / np.linalg.norm(u[i])
                u[i] *= max(1, floor * ratio)
        u = -rate * u
        norm = np.linalg.norm(p)
        radial = np.sum(u * p) / norm
        less = outward * radial if radial > 0 else radial
        new = p + u + (less - radial) * p / norm
        new = new * (norm + less) / np.linalg.norm(new)
        return new - rate * decay * np.where((new - p) * p <= 0, p, 0)

    return step


def muloco(inner, period=4, rate=0.7, momentum=0.5):
    taken, slow, trace = 0, [], []

    def step(params, grads):
        nonlocal taken, slow, trace
        if taken == 0:
            slow, trace = params, [0 * p for p in params]
        params, taken = inner(params, grads), taken + 1
        if taken % period == 0:
            deltas = [s - p for s, p in zip(slow, params, strict=True)]
            trace = [momentum * b + d for b, d in zip(trace, deltas, strict=True)]
            terms = zip(slow, deltas, trace, strict=True)
            slow = params = [s - rate * (d + momentum * b) for s, d, b in terms]
        return params

    return step


def ema_nesterov(inner, beta, start, stop, decay=0.99):
    taken, base, velocity = 0, [], []

    def step(ahead, grads):
        nonlocal taken, base, velocity
        if taken == 0:
            base, velocity = ahead, [0 * p for p in ahead]
        new, taken = inner(ahead, grads), taken + 1
        moves = zip(velocity, new, base, strict=True)
        velocity = [decay * v + (1 - decay) * (p - q) for v, p, q in moves]
        base, now = new, beta if start <= taken < stop else 0
        return [p + now * v for p, v in zip(new, velocity, strict=True)]

    return step


# Steps for hidden matrices, and for the rest if they are others.
HIDDEN = {
    "adam": [lambda: descending(adam(0.9, 0.95, 1e-10), 0.0015, 0.1)],
    "muon": [lambda: descending(shaped(muon), 0.025, 0.05), 0.7, 0.004, 0.015, 0.001],
    "normuon": [lambda: descending(normuon, 0.035, 0.025)],
    "aurora": [lambda: floored(aurora)],
    "muon_squared": [lambda: descending(shaped(muon_squared), 0.1, 0.0125)],
    "spectral_descent": [lambda: descending(shaped(spectral_descent), 0.03, 0.015)],
    "normuon_floor": [lambda: floored(normuon)],
    "muown": [muown, 0.6, 0.009375, 0.03],
    "adam_h": [lambda: on_the_hyperball(adam(0.9, 0.95), 0.018)],
    "muon_h": [lambda: on_the_hyperball(muon, 0.018), 0.91, 0.0064, 0.0195, 0.001],
    "normuon_h": [lambda: on_the_hyperball(normuon, 0.018)],
    "psgd_h": [lambda: on_the_hyperball(psgd, 0.025)],
    "soap_h": [lambda: on_the_hyperball(soap(skips_first=False), 0.018)],
    "kl_soap_h": [lambda: on_the_hyperball(soap(kl=True), 0.018)],
    "shampoo": [
        lambda: descending(shampoo(0.95, 5, eps=1e-12, graft_eps=1e-10), 0.0015, 0.2)
    ],
    "one_sided_shampoo": [
        lambda: descending(
            shampoo(0.9, 1, eps=0.0, graft_eps=1e-15, is_one_sided=True), 0.01, 0.1
        )
    ],
}
ROWS = {
    **{name: lambda row=row: with_adam(*row) for name, row in HIDDEN.items()},
    "muloco": lambda: muloco(with_adam(lambda: on_the_hyperball(normuon, 0.018))),
    "ema_nesterov": lambda: ema_nesterov(
        with_adam(lambda: descending(shaped(muon), 0.035, 0.025)), 0.6, 3, 15
    ),
    "record": lambda: ema_nesterov(with_adam(record), 0.3, 3, 12),
}


#
# The same by eqopt
#


@functools.cache
def of_page():
    names = {}
    for block in blocks(PAGE):
        exec(compile(block.code, PAGE, "exec"), names)
    return names


def with_eps(opt, soap):
    return eqx.tree_at(lambda opt: soap(opt).eps, opt, SOAP_EPS)


# So that all happens within the steps that are taken.
SHORTER = {
    "soap_h": lambda opt: with_eps(opt, lambda opt: opt["hidden"].inner),
    "kl_soap_h": lambda opt: with_eps(opt, lambda opt: opt["hidden"].inner),
    "muloco": lambda opt: dataclasses.replace(opt, period=4),
    "ema_nesterov": lambda opt: dataclasses.replace(opt, start=3, stop=15),
    "record": lambda opt: dataclasses.replace(
        opt,
        inner=dataclasses.replace(
            with_eps(opt.inner, lambda opt: opt.inner["hidden"][0]), start=3, stop=12
        ),
        decay=lambda count: jnp.where(count < LATE, 0, 1 - 1 / 150),
    ),
}
OF_EIGENVECTORS = ("soap_h", "kl_soap_h", "record")


def expression(name):
    return SHORTER.get(name, lambda opt: opt)(of_page()[name])


def trained(opt, model):
    """The model and the state after each step."""
    treedef = jax.tree.structure(model)
    step = interpreted(lambda *args: opt.step(*args))
    state = opt.init(model)
    for _ in range(STEPS):
        grads = treedef.unflatten(jnp.asarray(gradient(p)) for p in leaves(model))
        model, state = step(grads, state, model)
        yield model, state


# For a square matrix, either side may count as the shorter one.
COMPARED = [
    *((name, SQUARE if name in OF_EIGENVECTORS else TALL_AND_WIDE) for name in ROWS),
    ("one_sided_shampoo", SQUARE),
]


@pytest.mark.parametrize(("name", "shapes"), COMPARED, ids=str)
def test_row_is_what_its_formulas_say(name, shapes, x64):
    opt, by_hand = expression(name), ROWS[name]()
    with x64():
        model = Model(shapes)
        params = leaves(model)
        for new, _ in trained(opt, model):
            params = by_hand(params, [*map(gradient, params)])
            for found, expected in zip(leaves(new), params, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.slow
def test_record_evaluates_with_an_average_of_the_late_parameters(x64):
    opt, average = expression("record"), []
    with x64():
        for i, (model, state) in enumerate(trained(opt, Model(SQUARE))):
            params = leaves(model)
            if i < LATE:
                average = params
            pairs = zip(average, params, strict=True)
            average = [a + (p - a) / 150 for a, p in pairs]
            evaluated = leaves(opt.eval_params(state, model))
            for found, expected in zip(evaluated, average, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_power_cool():
    """As the README writes it, with the constant from where the curves meet."""
    found = of_page()["power_cool"](0.3, 1487)
    steps = np.arange(0, 3000, 100)
    left = np.maximum(2900.0 - steps, 0)
    expected = np.minimum(0.3, 0.3 / (2900.0 - 1487) ** 1.2 * left**1.2)
    np.testing.assert_allclose([found(int(t)) for t in steps], expected, 1e-4, 1e-7)


def test_page_lists_what_is_compared():
    listed = re.findall(r"\| \[`(\w+)`\]\(#", prose(PAGE))
    assert sorted(listed) == sorted(ROWS)
