"""One test per law, over every transformation in the registry."""

import dataclasses
import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import eqopt
from eqopt._checks import hyperparameters
from eqopt._types import ScalarOrSchedule

from .registry import REGISTRY, TELLING, concrete_transformations
from .subjects import (
    arrays,
    assert_close,
    assert_equal,
    avals,
    awkward,
    grads_of,
    init,
    params_of,
    step,
    train,
    update,
)


SLOW = pytest.mark.slow

# The quick set asks the laws of a few building blocks, but for these: they take long, or
# fail as a rule only where another law does, too.
LONG_TAIL = {
    "test_eager_is_jitted",
    "test_float16_zero_gradients",
    "test_float64",
    "test_gradients_through_steps",
    "test_hyperparameters_take_schedules",
    "test_no_float64_leaks",
    "test_populations",
    "test_scan",
    "test_state_is_sharded_like_parameters",
    "test_vmap",
    "test_whole_models",
}


def law(test):
    """Runs a test over the registry; exemptions stand in the rows."""
    params = []
    for row in REGISTRY:
        is_quick = row.name in TELLING and test.__name__ not in LONG_TAIL
        marks = [] if is_quick else [SLOW]
        if test.__name__ not in row.exempt:
            params.append(pytest.param(row, id=row.name, marks=marks))
    return pytest.mark.parametrize("row", params)(test)


def test_every_transformation_is_in_the_registry():
    seen = set()

    def visit(node):
        seen.add(type(node))
        return False

    for row in REGISTRY:
        jax.tree.leaves(row(), is_leaf=visit)
    assert concrete_transformations() <= seen


def _case(dtype, grad_dtype=None, *, slow=False):
    name = f"{dtype.__name__}, {grad_dtype.__name__} gradients" if grad_dtype else None
    marks = [SLOW] if slow else []
    return pytest.param(dtype, grad_dtype, id=name or dtype.__name__, marks=marks)


@law
def test_shapes_and_dtypes_stay(row):
    """Laws 1 and 2: updates like gradients, state like the one of `init`; one trace."""
    check_shapes_and_dtypes(row, jnp.float32)


@pytest.mark.parametrize(
    ("dtype", "grad_dtype"),
    [
        _case(jnp.complex64, slow=True),
        _case(jnp.bfloat16, jnp.float32),
        _case(jnp.bfloat16, slow=True),
        _case(jnp.float16, slow=True),
        _case(jnp.float32, jnp.bfloat16, slow=True),
    ],
)
@law
def test_shapes_and_dtypes_stay_in_any_precision(row, dtype, grad_dtype):
    check_shapes_and_dtypes(row, dtype, grad_dtype)


def check_shapes_and_dtypes(row, dtype, grad_dtype=None):
    opt, params = row(), params_of(dtype)
    state = init(opt, params)
    before = avals(state)
    traced = eqx.debug.assert_max_traces(opt.update, max_traces=1)
    call = eqx.filter_jit(lambda g, s, p: traced(g, s, p))
    for i in range(3):
        grads = grads_of(params, i, grad_dtype)
        updates, state = call(grads, state, params)
        assert avals(updates) == avals(grads)
        assert avals(state) == before
        assert jax.tree.structure(state) == jax.tree.structure(before)
        params_new, stepped = step(opt, grads, state, params)
        assert avals(params_new) == avals(params)
        assert avals(stepped) == before
        assert all(bool(jnp.all(jnp.isfinite(x))) for x in arrays(updates))


@law
def test_step_is_update_and_apply(row):
    """`step` and `update` + `apply_updates` are one thing, but for rounding."""

    def separately(opt, grads, state, params):
        updates, state = update(opt, grads, state, params)
        return eqopt.apply_updates(params, updates), state

    params = params_of()
    together = train(row(), params, 5)
    assert_close(together, train(row(), params, 5, call=separately))


@law
def test_eager_is_jitted(row):
    params = params_of()
    eager = lambda opt, grads, state, params: opt.step(grads, state, params)
    assert_close(train(row(), params, 3), train(row(), params, 3, call=eager))


@law
def test_hyperparameters_are_data(row):
    """Law 3: a number and a 0-d array give the same; a new value is no new trace."""
    params = params_of()
    as_arrays = {k: jnp.asarray(v) for k, v in row.data.items()}
    assert_close(
        train(row(**row.data), params, 3),
        train(row(**as_arrays), params, 3),
        1e-5,
        1e-6,
    )
    traced = eqx.debug.assert_max_traces(
        lambda opt, g, s, p: opt.step(g, s, p), max_traces=1
    )
    call = eqx.filter_jit(lambda opt, g, s, p: traced(opt, g, s, p))
    for factor in (1.0, 0.5):
        opt = row(**{k: jnp.asarray(v * factor) for k, v in row.data.items()})
        train(opt, params, 2, call=call)


@law
def test_hyperparameters_take_schedules(row):
    """Law 3: changing numbers by hand and by schedules within `Scheduled` is the same."""
    fields = dataclasses.fields(row.subject)
    by_themselves = {field.name for field in fields if field.type == ScalarOrSchedule}
    takes = by_themselves.union(hyperparameters(row.subject))
    at = lambda v, count: jnp.asarray(v) * (1 - 0.1 * jnp.asarray(count, float))
    data = {k: v for k, v in row.data.items() if k in takes}
    schedules = {k: lambda count, v=v: at(v, count) for k, v in data.items()}
    params, state = params_of(), None
    scheduled = train(eqopt.Scheduled(row(**schedules)), params, 2)[0]
    for i in range(2):
        opt = row(**{k: at(v, i) for k, v in data.items()})
        state = init(opt, params) if state is None else state
        params, state = step(opt, grads_of(params, i), state, params)
    assert_close(scheduled, params, 1e-5, 1e-6)


@law
def test_populations(row):
    """Law 3: optimizers can be mapped over."""
    row_of = lambda factor: row(**{k: v * factor for k, v in row.data.items()})
    params, factors = params_of(), jnp.array([1.0, 0.5, 0.25])

    def final(factor):
        opt, p = row_of(factor), params
        state = opt.init(p)
        for i in range(2):
            p, state = opt.step(grads_of(p, i), state, p)
        return eqx.filter(p, eqx.is_array)

    population = eqx.filter_jit(eqx.filter_vmap(final))(factors)
    for i, factor in enumerate(factors):
        one = train(row_of(factor), params, 2)[0]
        assert_close(jax.tree.map(lambda x, i=i: x[i], population), one)


@law
def test_gradients_through_steps(row):
    """Law 3: finite derivatives with respect to hyperparameters and gradients."""
    params = params_of()
    data = {k: jnp.asarray(v) for k, v in row.data.items()}

    def objective(data, scale):
        opt, p = row(**data), params
        state = opt.init(p)
        for i in range(2):
            grads = jax.tree.map(lambda g: g * scale, grads_of(params, i))
            p, state = opt.step(grads, state, p)
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(p))

    slopes_at = jax.jit(jax.grad(objective, argnums=(0, 1)))
    for scale in (1.0, 0.0):
        slopes = slopes_at(data, jnp.asarray(scale))
        assert all(bool(jnp.isfinite(slope)) for slope in jax.tree.leaves(slopes))
        if "learning_rate" in data and scale:
            assert slopes[0]["learning_rate"] != 0


@law
def test_equal_optimizers_share_a_trace(row):
    """Law 3: two equal optimizers are equal, hash equal, and share one trace."""
    one, other = row(), row()
    assert one == other
    assert hash(one) == hash(other)
    params = params_of()
    traced = eqx.debug.assert_max_traces(
        lambda opt, g, s, p: opt.update(g, s, p), max_traces=1
    )
    call = eqx.filter_jit(lambda opt, g, s, p: traced(opt, g, s, p))
    for opt in (one, other):
        call(opt, grads_of(params, 0), opt.init(params), params)


@law
def test_whole_models(row):
    """Law 4: raw models in, raw models out."""
    opt, model = row(), awkward()
    state = init(opt, model)

    def loss(model, x):
        return jnp.mean(jax.vmap(model)(x) ** 2)

    x = jnp.linspace(-1, 1, 12).reshape(3, 4)
    for _ in range(2):
        grads = eqx.filter_grad(loss)(model, x)
        updates, _ = update(opt, grads, state, model)
        assert jax.tree.structure(updates) == jax.tree.structure(grads)
        new, state = step(opt, grads, state, model)
        assert jax.tree.structure(new) == jax.tree.structure(model)
        unchanged = lambda m: eqx.filter(m, eqx.is_inexact_array, inverse=True)
        assert_equal(unchanged(new), unchanged(model))
        evaluated = opt.eval_params(state, new)
        assert avals(evaluated) == avals(new)
        model = new


@law
def test_float16_zero_gradients(row):
    """Law 5: a zero gradient is no NaN."""
    params = params_of(jnp.float16)
    zeros = lambda params, i: jax.tree.map(jnp.zeros_like, grads_of(params, i))
    params, state = train(row(), params, 3, grads=zeros)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in arrays((params, state)))


@law
def test_no_float64_leaks(row, x64):
    """Law 5: float32 stays float32 when x64 is on."""
    with x64():
        params = params_of()
        params, state = train(row(), params, 2)
        updates, _ = update(row(), grads_of(params, 0), state, params)
        assert not [x for x in arrays((params, state, updates)) if x.dtype == "float64"]


@law
def test_float64(row, x64):
    """Law 5: float64 parameters are computed in float64."""
    with x64():
        wide = params_of(jnp.float64)
        narrow = jax.tree.map(lambda p: p.astype(jnp.float32), wide)
        grads = lambda params, i: jax.tree.map(
            lambda g, p: g.astype(p.dtype), grads_of(wide, i), params
        )
        wide, narrow = (train(row(), p, 3, grads=grads)[0] for p in (wide, narrow))
        assert all(x.dtype == "float64" for x in arrays(wide))
        assert_close(
            wide, jax.tree.map(lambda p: p.astype("float64"), narrow), 1e-3, 1e-4
        )


@law
def test_a_nan_that_is_left_out_leaves_no_trace(row):
    """Law 6: as if it had never been, for whatever is inside of the switches."""
    params = params_of()
    guarded = eqopt.MultiSteps(eqopt.ApplyIfFinite(row(), 2), 2)

    def grads(params, i):
        tree = grads_of(params, i)
        return (
            {**tree, "matrix": tree["matrix"].at[0, 0].set(jnp.nan)} if i == 0 else tree
        )

    disturbed, state = train(guarded, params, 4, grads=grads)
    later = lambda params, i: grads_of(params, i + 2)
    expected, expected_state = train(guarded, params, 2, grads=later)
    assert_close(disturbed, expected)
    inner, expected_inner = (s.inner_state.inner_state for s in (state, expected_state))
    assert_close(inner, expected_inner)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in arrays((disturbed, state)))


@law
def test_vmap(row):
    """Law 7: mapping over parameters is training each by itself."""
    opt = row()
    several = [params_of(seed=seed) for seed in range(2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *several)

    def final(params):
        state = opt.init(params)
        for i in range(2):
            params, state = opt.step(grads_of(params, i), state, params)
        return params, state

    mapped = jax.jit(jax.vmap(final))(stacked)
    for i, params in enumerate(several):
        one = jax.tree.map(lambda x, i=i: x[i], mapped)
        assert_close(one, train(opt, params, 2))


@law
def test_scan(row):
    """Law 7."""
    opt, params = row(), params_of()
    grads = [grads_of(params, i) for i in range(4)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *grads)

    def body(carry, grads):
        params, state = carry
        return opt.step(grads, state, params), None

    scanned, _ = jax.jit(lambda c, g: jax.lax.scan(body, c, g))(
        (params, opt.init(params)), stacked
    )
    looped = train(opt, params, 4, grads=lambda params, i: grads[i])
    assert_close(scanned, looped)


@law
def test_abstract_init(row):
    """Law 7: `init` on shapes gives the shapes of the state."""
    opt, params = row(), params_of()
    shapes = eqx.filter_eval_shape(opt.init, params)
    again = eqx.filter_eval_shape(opt.init, eqx.filter_eval_shape(lambda: params_of()))
    real = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), opt.init(params)
    )
    assert shapes == real
    assert again == real


@law
@pytest.mark.parametrize("call", [pytest.param("update", marks=SLOW), "step"])
def test_donation(row, call):
    """Law 7: no two buffers of parameters and state are one, from the first step on."""
    opt = row()
    # Jitted, so that each leaf has a buffer of its own.
    params = jax.jit(params_of)()
    state = opt.init(params)

    def one_step(grads, params, state):
        if call == "step":
            return opt.step(grads, state, params)
        updates, state = opt.update(grads, state, params)
        return jax.tree.map(lambda p, u: p + u, params, updates), state

    donating = eqx.filter_jit(one_step, donate="all-except-first")
    expected = params_of(), opt.init(params_of())
    for i in range(3):
        grads = grads_of(expected[0], i)
        params, state = donating(grads, params, state)
        expected = eqx.filter_jit(one_step)(grads, *expected)
    assert_close((params, state), expected)


@law
def test_state_is_sharded_like_parameters(row):
    """Law 7: on 8 devices, also when `init` is compiled on an automatic mesh."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    split, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    params = jax.device_put(
        {"w": jnp.ones((16, 3)), "b": jnp.ones(16)}, {"w": split, "b": split}
    )
    opt = row()
    for state in (opt.init(params), jax.jit(opt.init)(params)):
        placed = params
        for _ in range(2):
            for x in arrays(state):
                expected = split if x.shape in {(16, 3), (16,)} else None
                if expected is not None:
                    assert x.sharding.is_equivalent_to(split, x.ndim), x.sharding
            placed, state = jax.jit(opt.step)(params, state, placed)
            assert all(
                x.sharding.is_equivalent_to(split, x.ndim) for x in arrays(placed)
            )
    single = jax.device_put(params, jax.devices()[0])
    result = jax.jit(opt.step)(single, opt.init(single), single)
    sharded = jax.jit(opt.step)(params, opt.init(params), params)
    assert_close(jax.device_put(sharded, whole), result)


@law
def test_resume_is_bit_identical(row):
    """Law 8."""
    opt, params = row(), params_of()
    undisturbed = train(opt, params, 5)
    params, state = train(opt, params, 3)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, (params, state))
    file.seek(0)
    like = eqx.filter_eval_shape(lambda: (params_of(), opt.init(params_of())))
    params, state = eqx.tree_deserialise_leaves(file, like)
    for i in range(3, 5):
        params, state = step(opt, grads_of(params, i), state, params)
    assert_equal((params, state), undisturbed)
