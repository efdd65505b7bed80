"""Training that begins in one library and continues in the other."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax._src import transform as optax_transform
from optax.transforms import _adding as optax_adding

import eqopt
from eqopt.interop._parts import nodes_of
from eqopt.interop.optax import from_optax, state_from_optax, state_to_optax, to_optax
from eqopt.interop.optax._optax import PARTNERS, RENAMED, is_ours

from ..interpreter import interpreted
from ..laws.row import matrix_or_other, one_in_two
from ..laws.subjects import (
    arrays,
    assert_close,
    assert_equal,
    avals,
    grads_of,
    params_of,
)
from ..parity.case import LINEARS, Case, is_matrix
from ..parity.test_optax import CASES


pytestmark = pytest.mark.usefixtures("standard_promotion")


HUGE = 1.5e38
NESTED = {
    "names": Case(
        eqopt.NamedChain(b=eqopt.Trace(0.9), a=eqopt.Adam(LINEARS[0])),
        optax.named_chain(("b", optax.trace(0.9)), ("a", optax.adam(LINEARS[1]))),
    ),
    "mask": Case(
        eqopt.Chain(eqopt.Masked(eqopt.ScaleByAdam(), is_matrix), eqopt.Scale(-0.1)),
        optax.chain(optax.masked(optax.scale_by_adam(), is_matrix), optax.scale(-0.1)),
    ),
    "partition": Case(
        eqopt.Partition(
            {"other": eqopt.SGD(LINEARS[0], 0.9), "matrix": eqopt.Lion(0.01)},
            matrix_or_other,
        ),
        optax.partition(
            {"other": optax.sgd(LINEARS[1], 0.9), "matrix": optax.lion(0.01)},
            matrix_or_other,
        ),
    ),
    "injected": Case(
        eqopt.AdamW(LINEARS[0], weight_decay=0.1),
        optax.inject_hyperparams(optax.adamw)(LINEARS[1], weight_decay=0.1),
    ),
    "ema": Case(
        eqopt.Chain(eqopt.EMA(0.9), eqopt.ScaleBySchedule(LINEARS[0])),
        optax.chain(optax.ema(0.9), optax.scale_by_schedule(LINEARS[1])),
    ),
    "MultiSteps": Case(
        eqopt.MultiSteps(eqopt.AdamW(LINEARS[0]), 3, use_grad_mean=False),
        optax.MultiSteps(
            optax.adamw(LINEARS[1]), 3, use_grad_mean=False
        ).gradient_transformation(),
    ),
    "apply_if_finite": Case(  # a step overflows
        eqopt.Chain(
            eqopt.Scale(HUGE),
            eqopt.ApplyIfFinite(
                eqopt.Chain(eqopt.Scale(1 / HUGE), eqopt.Adam(LINEARS[0])), 1
            ),
        ),
        optax.chain(
            optax.scale(HUGE),
            optax.apply_if_finite(
                optax.chain(optax.scale(1 / HUGE), optax.adam(LINEARS[1])), 1
            ),
        ),
    ),
    "conditions": Case(
        eqopt.ConditionallyMask(
            eqopt.ConditionallyTransform(eqopt.Adam(LINEARS[0]), one_in_two), one_in_two
        ),
        optax.conditionally_mask(
            optax.conditionally_transform(optax.adam(LINEARS[1]), one_in_two),
            one_in_two,
        ),
    ),
    "muon": Case(
        eqopt.Muon(LINEARS[0], beta=0.9, eps=1e-6, weight_decay=0.1),
        optax.contrib.muon(
            LINEARS[1], beta=0.9, eps=1e-6, weight_decay=0.1, adam_weight_decay=0.1
        ),
    ),
    "adafactor": Case(
        eqopt.Adafactor(LINEARS[0], 2, momentum=0.9, weight_decay=0.01),
        optax.adafactor(LINEARS[1], 2, momentum=0.9, weight_decay_rate=0.01),
    ),
}
CONVERTIBLE = {**NESTED, **{n: case for n, case in CASES.items() if case.converts}}
QUICK = {"partition", "injected"}


def train(tx, params, state, steps):
    """Some steps with Optax, or with ours by its name there."""
    update = interpreted(optax.with_extra_args_support(tx).update)
    for i in steps:
        updates, state = update(grads_of(params, i), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def bits(tree):
    return {np.asarray(x).tobytes() for x in arrays(tree) if x.ndim}


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CONVERTIBLE],
)
@pytest.mark.costly
def test_training_continues_where_the_other_library_stopped(name):
    case = CONVERTIBLE[name]
    ours, theirs, start = case.ours, case.theirs, params_of()
    params, their_state = train(theirs, start, theirs.init(start), range(5))
    state = state_from_optax(ours, their_state, params, count=5)

    # Each array has the bits of Optax's array, in a state as from training in eqopt.
    assert bits(state) <= bits(their_state)
    own = train(to_optax(ours), start, ours.init(start), range(5))[1]
    assert avals(state) == avals(own)
    assert_close(state, own, case.rtol, case.rtol)
    back = state_to_optax(theirs, state, params)
    assert bits(back) == bits(their_state)
    if not name.startswith("injected"):  # these also record the values of schedules
        assert_equal(back, their_state)

    # All three continue with equal results.
    expected, _ = train(theirs, params, their_state, range(5, 10))
    assert_equal(train(theirs, params, back, range(5, 10))[0], expected)
    trained, _ = train(to_optax(ours), params, state, range(5, 10))
    assert_close(trained, expected, case.rtol, case.rtol / 10)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(eqopt.Adam, optax.adam), (eqopt.Lion, optax.lion)]
)
def test_training_continues_with_equal_results(ours, theirs):
    """Bit for bit, if hyperparameters are float32 arrays in both libraries."""
    opt, tx = ours(0.1), optax.inject_hyperparams(theirs)(learning_rate=0.1)
    params, their_state = train(tx, params_of(), tx.init(params_of()), range(5))
    state = state_from_optax(opt, their_state, params)
    expected, _ = train(tx, params, their_state, range(5, 15))
    assert_equal(train(to_optax(opt), params, state, range(5, 15))[0], expected)


def test_every_state_of_the_table():
    """All names in the table exist, and each of its rows is tested."""
    theirs = {name for names in PARTNERS.values() for name in names}
    rooms = optax, optax.contrib, optax.transforms, optax_transform, optax_adding
    for name in theirs:
        found = [getattr(room, name) for room in rooms if hasattr(room, name)]
        assert found, name
        fields = RENAMED.get(name, {})
        assert fields.keys() <= {*found[0]._fields}
    seen = set()
    for case in CONVERTIBLE.values():
        nodes = nodes_of(case.ours.init(params_of()), is_ours)
        seen.update(type(node).__name__ for _, node in nodes if is_ours(node))
    assert seen == PARTNERS.keys()


MODEL = eqx.nn.MLP(2, "scalar", 4, 1, key=jax.random.key(0))
PARAMS = eqx.filter(MODEL, eqx.is_inexact_array)


def after(tx, steps, params=PARAMS):
    ones = jax.tree.map(jnp.ones_like, params)
    state = tx.init(params)
    for _ in range(steps):
        _, state = tx.update(ones, state, params)
    return state


@pytest.mark.slow
def test_a_whole_model():
    opt, tx = eqopt.AdamW(1e-2), optax.adamw(1e-2)
    state = state_from_optax(opt, after(tx, 3), MODEL)
    assert state[0].count == 3
    assert_equal(state[0].mu, after(tx, 3)[0].mu)
    assert_equal(state_to_optax(tx, state, MODEL), after(tx, 3))
    donated = eqx.filter_jit(lambda s, g: opt.step(g, s, MODEL), donate="all")
    donated(state, jax.tree.map(jnp.ones_like, PARAMS))


def test_with_optax_itself_to_the_bit():
    """With `from_optax`, any state of Optax can continue."""
    tx = optax.chain(optax.contrib.dog(1.0), optax.apply_every(2))
    opt, params = from_optax(tx), params_of()
    params, their_state = train(tx, params, tx.init(params), range(3))
    state = state_from_optax(opt, their_state, params)
    assert_equal(state.optax_state, their_state)
    assert_equal(state_to_optax(tx, state, params), their_state)
    expected, _ = train(tx, params, their_state, range(3, 6))
    assert_equal(train(to_optax(opt), params, state, range(3, 6))[0], expected)


def test_a_sum_that_was_used():
    """In Optax it is zero; eqopt overwrites it in the next step."""
    opt = eqopt.MultiSteps(eqopt.SGD(0.1), 2, use_grad_mean=False)
    tx = optax.MultiSteps(optax.sgd(0.1), 2, False).gradient_transformation()
    assert_equal(state_to_optax(tx, after(to_optax(opt), 2), MODEL), after(tx, 2))


def test_counts():
    """Taken from where there is one, or as given; and so is the learning rate."""
    falling = eqopt.SGD(eqopt.schedules.Linear(1.0, 0.0, 10), 0.9)
    plain = after(optax.sgd(0.1, 0.9), 4)
    cases = [
        (falling, plain, {}, 0, 1.0),
        (falling, plain, {"count": 4}, 4, 0.7),
        (falling, after(optax.sgd(lambda count: 0.1, 0.9), 4), {}, 4, 0.7),
        (eqopt.SGD(0.3, 0.9), after(optax.sgd(lambda count: 0.1, 0.9), 4), {}, 4, 0.3),
        (falling, after(optax.inject_hyperparams(optax.sgd)(0.1, 0.9), 4), {}, 4, 0.7),
        (
            eqopt.Chain(eqopt.Trace(0.9), eqopt.Adam(0.2)),
            after(optax.chain(optax.trace(0.9), optax.adam(0.2)), 4),
            {},
            4,
            0.2,
        ),
    ]
    for opt, optax_state, options, count, rate in cases:
        state = state_from_optax(opt, optax_state, MODEL, **options)
        [(_, last)] = eqopt.tree.get_all_with_path(state, "ScaleByLearningRateState")
        assert last.count == count
        np.testing.assert_allclose(last.learning_rate, rate, rtol=1e-6)


@pytest.mark.slow
def test_injected_schedules_go_on():
    tx = optax.inject_hyperparams(optax.adam)(optax.linear_schedule(0.1, 0.0, 10))
    opt = eqopt.Adam(eqopt.schedules.Linear(0.1, 0.0, 10))
    state = state_to_optax(tx, after(to_optax(opt), 4), MODEL)
    assert state.count == 4
    assert state.hyperparams_states["learning_rate"].count == 4
    ones = jax.tree.map(jnp.ones_like, PARAMS)
    _, state = tx.update(ones, state, PARAMS)
    np.testing.assert_allclose(state.hyperparams["learning_rate"], 0.06, rtol=1e-6)


ADAM = eqopt.Adam(1e-2)


def test_traced():
    """Also with a given count, which is checked without tracing a comparison."""
    opt, optax_state = eqopt.Adam(1e-2), after(optax.adam(1e-2), 2)
    convert = eqx.filter_jit(
        lambda s, **count: state_from_optax(opt, s, MODEL, **count)
    )
    assert_equal(convert(optax_state), state_from_optax(opt, optax_state, MODEL))
    count = jnp.asarray(3)
    given = lambda: state_from_optax(opt, optax_state, MODEL, count=count)
    assert eqx.filter_eval_shape(given) is not None


DEEPER = eqx.nn.MLP(2, "scalar", 4, 2, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("opt", "tx", "model", "message"),
    [
        (
            ADAM,
            optax.sgd(0.1, 0.9),
            MODEL,
            "eqopt has a ScaleByAdamState at `[0]`, but Optax has a TraceState at `[0]`. "
            "Both optimizers must have the same parts in the same order",
        ),
        (
            eqopt.DoG(),
            optax.adam(0.1),
            MODEL,
            "eqopt has something else at `[1].is_init_step`, but Optax has a ScaleByAdam",
        ),
        (
            ADAM,
            optax.adam(0.1),
            DEEPER,
            "does not fit the parameters at `[0].mu`. It has no array at "
            "`[0].mu.layers[2].weight`, `[0].mu.layers[2].bias`",
        ),
        (
            ADAM,
            optax.adam(0.1, mu_dtype=jnp.bfloat16),
            MODEL,
            "has bfloat16[4, 2] at `[0].mu.layers[0].weight`, but the optimizer has "
            "float32[4, 2] at `[0].mu.layers[0].weight`",
        ),
    ],
)
@pytest.mark.costly
def test_states_that_do_not_fit(opt, tx, model, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        state_from_optax(opt, after(tx, 1), model)


def test_counts_that_differ():
    states = after(optax.adam(0.1), 1), after(optax.adam(0.1), 2)
    with pytest.raises(
        ValueError, match=r"is 1, `\[1\]\[0\]\.count` is 2\. Pass `count"
    ):
        state_from_optax(eqopt.Chain(ADAM, ADAM), states, MODEL)
