"""One test per law, for every transformation in the registry.

Compiling would take nearly all of the time. So laws about types only trace, laws about
results compare with one `trail` of moments in training, and programs are `interpreted`.
Only the laws about the compiler compile: donated buffers, shards, and steps outside
`jit`.
"""

import dataclasses
import functools
import io
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.tree_util import keystr, tree_leaves_with_path, tree_map_with_path

import eqopt
from eqopt._arguments.checks import hyperparameters
from eqopt._types import ScalarOrSchedule

from ..interpreter import interpreted
from .registry import REGISTRY, TELLING, concrete_transformations, law as of_rows
from .subjects import (
    all_finite,
    arrays,
    assert_close,
    assert_equal,
    avals,
    awkward,
    both,
    grads_of,
    moment,
    params_of,
    step,
    traces,
    trail,
    train,
)


SLOW = pytest.mark.slow

# The quick set tests a few building blocks, but not these laws: they take long, or
# usually fail only if another law fails, too.
LONG_TAIL = {
    "test_eager_is_jitted",
    "test_float16_zero_gradients",
    "test_float64",
    "test_hyperparameters_take_schedules",
    "test_no_float64_leaks",
    "test_populations",
    "test_scan",
    "test_state_is_sharded_like_parameters",
    "test_vmap",
    "test_whole_models",
    "test_without_jit_and_with_debug_nans",
}


def law(test):
    return of_rows(() if test.__name__ in LONG_TAIL else TELLING)(test)


def test_every_transformation_is_in_the_registry():
    seen = set()

    def visit(node):
        seen.add(type(node))
        return False

    for row in REGISTRY:
        jax.tree.leaves(row(), is_leaf=visit)
    # `StoreParams` needs parameters in half precision: `test_stored` tests its laws.
    assert concrete_transformations() - {eqopt.StoreParams} <= seen


def _case(dtype, grad_dtype=None, *, slow=False):
    name = f"{dtype.__name__}, {grad_dtype.__name__} gradients" if grad_dtype else None
    marks = [SLOW] if slow else []
    return pytest.param(dtype, grad_dtype, id=name or dtype.__name__, marks=marks)


@law
def test_shapes_and_dtypes_stay(row):
    """Laws 1 and 2: updates are like gradients, states as from `init`; one trace."""
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
    is_shared = dtype == jnp.float32  # with other laws, which need more steps
    first, *later = trail(row, dtype, grad_dtype, *[] if is_shared else [2])
    params, before = first.params, avals(first.state)
    assert avals(eqx.filter_eval_shape(row().init, params)) == before
    for i, now in enumerate(later):
        updates, state = now.updated
        assert avals(updates) == avals(grads_of(params, i, grad_dtype))
        assert avals(now.params) == avals(params)
        assert avals(state) == avals(now.state) == before
        assert jax.tree.structure(state) == jax.tree.structure(before)
        assert all_finite(updates)
    assert later[-1].traces <= first.traces + 1


@law
def test_step_is_update_and_apply(row):
    """`step` is `update` and `apply_updates`, except for rounding."""
    opt, params = row(), params_of()
    state = opt.init(params)
    for i, together in enumerate(trail(row)[1:]):
        updated, _ = both(opt, grads_of(params, i), state, params)
        params, state = eqopt.apply_updates(params, updated[0]), updated[1]
        assert_close((together.params, together.state), (params, state))


@law
def test_eager_is_jitted(row):
    eager = lambda opt, grads, state, params: opt.step(grads, state, params)
    assert_close(moment(row, 3), train(row(), params_of(), 3, call=eager))


def strong(v):
    """A hyperparameter as an array without a weak type, like an argument of `jit`."""
    return jnp.asarray(v, jnp.float32)


@law
def test_hyperparameters_are_data(row):
    """Law 3: a number and a 0-d array give the same; a new value needs no new trace."""
    params = params_of()
    opt = row(**{k: strong(v) for k, v in row.data.items()})
    after = train(opt, params, 3)
    assert_close(train(row(**row.data), params, 3), after, 1e-5, 1e-6)
    traces_before = traces["step"]
    train(row(**{k: strong(v * 0.5) for k, v in row.data.items()}), params, 2)
    assert traces["step"] == traces_before
    weak = row(**{k: jnp.asarray(v) for k, v in row.data.items()})
    shapes = eqx.filter_eval_shape(
        lambda opt, *args: opt.step(*args), weak, grads_of(params, 0), after[1], params
    )
    assert avals(shapes) == avals(after)


@law
def test_hyperparameters_take_schedules(row):
    """Law 3: `Scheduled` gives the same as changing the numbers by hand."""
    fields = dataclasses.fields(row.subject)
    by_themselves = {field.name for field in fields if field.type == ScalarOrSchedule}
    takes = by_themselves.union(hyperparameters(row.subject))
    at = lambda v, count: strong(v) * (1 - 0.1 * jnp.asarray(count, jnp.float32))
    data = {k: strong(v) for k, v in row.data.items()}
    schedules = {k: lambda count, v=v: at(v, count) for k, v in data.items()}
    schedules = {k: v for k, v in schedules.items() if k in takes}
    params = params_of()
    scheduled = train(eqopt.Scheduled(row(**{**data, **schedules})), params, 2)[0]
    state = row(**{**data, **{k: at(data[k], 0) for k in schedules}}).init(params)
    for i in range(2):
        opt = row(**{**data, **{k: at(data[k], i) for k in schedules}})
        params, state = step(opt, grads_of(params, i), state, params)
    assert_close(scheduled, params, 1e-5, 1e-6)


@law
def test_populations(row):
    """Law 3: optimizers can be mapped over."""
    row_of = lambda factor: row(**{k: v * factor for k, v in row.data.items()})
    factors = np.array([1.0, 0.5, 0.25], np.float32)
    call = lambda factor, *args: row_of(factor).step(*args)
    mapped_init = interpreted(eqx.filter_vmap(lambda f, params: row_of(f).init(params)))
    mapped = interpreted(eqx.filter_vmap(call, in_axes=(0, None, 0, 0)))
    params = stack([params_of()] * 3)
    state = mapped_init(jnp.asarray(factors), params)
    for i in range(2):
        grads = grads_of(params_of(), i)
        params, state = mapped(jnp.asarray(factors), grads, state, params)
    for i, factor in enumerate(factors):
        one = train(row_of(strong(factor)), params_of(), 2)[0]
        assert_close(jax.tree.map(lambda x, i=i: x[i], params), one)


@of_rows({"EMA", "Prodigy", "ScaleByMuon"})
def test_gradients_through_steps(row):
    """Law 3: finite derivatives with respect to hyperparameters and gradients.

    The steps are jitted. JAX then differentiates them after tracing, when equations no
    longer allow implicit promotion.
    """
    data = {k: jnp.asarray(v) for k, v in row.data.items()}
    step = jax.jit(lambda data, *args: row(**data).step(*args))

    def objective(data, scale, params, grads):
        state = row(**data).init(params)
        for g in grads:
            g = jax.tree.map(lambda g: g * scale, g)
            params, state = step(data, g, state, params)
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(params))

    slopes_at = interpreted(jax.grad(objective, argnums=(0, 1, 2)))
    params = params_of()
    grads = [grads_of(params, i) for i in range(2)]
    for scale in (1.0, 0.0):
        given = data, jnp.asarray(scale), params
        slopes = slopes_at(*given, grads)
        assert avals(slopes) == avals(given)
        assert all_finite(slopes[:2])
        if "learning_rate" in data and scale:
            assert slopes[0]["learning_rate"] != 0


@law
def test_equal_optimizers_share_a_trace(row):
    """Law 3: two equal optimizers are equal, hash equal, and share one trace."""
    one, other = row(), row()
    assert one == other
    assert hash(one) == hash(other)
    params, state = moment(row, 0)
    both(one, grads_of(params, 0), state, params)
    traces_before = traces["both"]
    both(other, grads_of(params, 0), other.init(params), params)
    assert traces["both"] == traces_before


@law
def test_whole_models(row):
    """Law 4: whole models go in, and only their parameters change."""
    opt, model = row(), awkward()
    state = opt.init(model)
    for _ in range(2):
        grads = slopes(model)
        (updates, _), (new, state) = both(opt, grads, state, model)
        assert jax.tree.structure(updates) == jax.tree.structure(grads)
        assert jax.tree.structure(new) == jax.tree.structure(model)
        unchanged = lambda m: eqx.filter(m, eqx.is_inexact_array, inverse=True)
        assert_equal(unchanged(new), unchanged(model))
        evaluated = opt.eval_params(state, new)
        assert avals(evaluated) == avals(new)
        model = new


@eqx.filter_jit
@eqx.filter_grad
def slopes(model):
    """The gradient of a loss of a model that maps vectors of four."""
    x = jnp.linspace(-1, 1, 12).reshape(3, 4)
    return jnp.mean(jax.vmap(model)(x) ** 2)


@law
def test_float16_zero_gradients(row):
    """Law 5: a zero gradient gives no NaN."""
    opt, params = row(), params_of(jnp.float16)
    state = opt.init(params)
    zeros = jax.tree.map(jnp.zeros_like, params)
    for _ in range(3):
        (updates, _), (params, state) = both(opt, zeros, state, params)
        assert all_finite((updates, params))
    # Only at the end: the smallest value so far is infinite until there is one.
    assert all_finite(state)


@law
def test_no_float64_leaks(row, x64):
    """Law 5: float32 stays float32 when x64 is on."""
    opt = row()

    def call(grads, params):
        state = opt.init(params)
        args = grads, state, params
        return state, opt.update(*args), opt.step(*args)

    with x64():
        params = params_of()
        shapes = eqx.filter_eval_shape(call, grads_of(params, 0), params)
    init, (_, updated), (_, stepped) = shapes
    assert avals(init) == avals(updated) == avals(stepped)
    leaves = jax.tree.leaves(shapes)
    assert not [x for x in leaves if getattr(x, "dtype", None) == "float64"]


@law
def test_float64(row, x64):
    """Law 5: float64 parameters are computed in float64."""
    narrow = moment(row, 3)[0]
    with x64():
        params = params_of(jnp.float64)
        wide = train(row(), params, 3)[0]
        assert all(x.dtype == "float64" for x in arrays(wide))
    assert_close(wide, narrow, 1e-3, 1e-4)


@law
def test_a_nan_that_is_left_out_leaves_no_trace(row):
    """Law 6: after a NaN is skipped, all is as if it had never occurred."""
    params = params_of()
    guarded = eqopt.MultiSteps(eqopt.ApplyIfFinite(row(), 2), 2)

    def grads(params, i):
        tree = grads_of(params, i)
        bad = np.array(tree["matrix"])
        bad[0, 0] = np.nan
        return {**tree, "matrix": jnp.asarray(bad)} if i == 0 else tree

    disturbed, state = train(guarded, params, 4, grads=grads)
    later = lambda params, i: grads_of(params, i + 2)
    expected, expected_state = train(guarded, params, 2, grads=later)
    assert_close(disturbed, expected)
    inner, expected_inner = (s.inner_state.inner_state for s in (state, expected_state))
    assert_close(inner, expected_inner)
    assert all_finite((disturbed, state))


@law
def test_vmap(row):
    """Law 7: mapped steps train each tree of parameters as by itself."""
    opt = row()
    several = [params_of(seed=seed) for seed in range(2)]
    params = stack(several)
    state = interpreted(jax.vmap(opt.init))(params)
    mapped = interpreted(jax.vmap(lambda *args: opt.step(*args), in_axes=(None, 0, 0)))
    for i in range(2):
        params, state = mapped(grads_of(several[0], i), state, params)
    by_both = lambda *args: both(*args)[1]
    for i, one in enumerate(several):
        found = jax.tree.map(lambda x, i=i: x[i], (params, state))
        assert_close(found, train(opt, one, 2, call=by_both))


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees)


@law
def test_scan(row):
    """Law 7."""
    opt, params = row(), params_of()
    stacked = stack([grads_of(params, i) for i in range(4)])

    def body(carry, grads):
        params, state = carry
        return opt.step(grads, state, params), None

    scanned, _ = interpreted(lambda c, g: jax.lax.scan(body, c, g))(
        (params, opt.init(params)), stacked
    )
    assert_close(scanned, moment(row, 4))


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


@functools.lru_cache(maxsize=1)
def donated(row):
    """Three compiled steps that may overwrite all of their arguments.

    Returns the results of `update` and `step` in each, and the number of traces.
    """
    opt, traced, seen = row(), 0, []

    @eqx.filter_jit(donate="all-except-first")
    def donating(grads, params, state):
        nonlocal traced
        traced += 1
        updates, updated = opt.update(grads, state, params)
        moved = jax.tree.map(lambda p, u: p + u, params, updates)
        return (moved, updated), opt.step(grads, state, params)

    # Copies, so that each leaf has its own buffer.
    params = jax.tree.map(jnp.copy, params_of())
    state = opt.init(params)
    for i in range(3):
        both = donating(grads_of(params, i), params, state)
        seen.append(jax.tree.map(np.asarray, both))
        params, state = both[1]
    return seen, traced


@law
@pytest.mark.parametrize("call", [pytest.param("update", marks=SLOW), "step"])
def test_donation(row, call):
    """Law 7: parameters and state share no buffers, from the first step on."""
    seen, traced = donated(row)
    assert traced == 1
    for i, (updated, stepped) in enumerate(seen):
        found = stepped if call == "step" else updated
        assert_close(found, moment(row, i + 1))


@law
def test_state_is_sharded_like_parameters(row):
    """Law 7: on several devices, also when `init` is compiled on an automatic mesh."""
    # As many devices as rows of the matrix. Results on one device are known already.
    mesh = Mesh(np.array(jax.devices()[:3]), ("x",))
    split, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())

    def is_split(path, x):
        is_parameter = {"'matrix'", "'more'"} & set(re.split(r"[][]", keystr(path)))
        return bool(is_parameter) and x.shape in {(3, 2), (3,)}

    def place(tree):
        put = lambda path, x: jax.device_put(x, split if is_split(path, x) else whole)
        return tree_map_with_path(put, tree)

    def check(tree):
        for path, x in tree_leaves_with_path(tree):
            if is_split(path, x):
                assert x.sharding.is_equivalent_to(split, x.ndim), x.sharding

    opt, params = row(), place(params_of())
    in_blocks = eqopt.storage.BlockwiseQuantized(block_size=2)
    stored = eqopt.StoreState(opt, in_blocks, eqopt.groups.everything)
    # Each code is where the number that it encodes is.
    compiled, codes = jax.jit(lambda p: (opt.init(p), stored.init(p)))(params)
    check(codes)
    step = jax.jit(opt.step)
    for state in (opt.init(params), compiled):
        check(state)
        assert all(len(x.sharding.device_set) == 3 for x in arrays(state))
        state = jax.tree.map(
            lambda x, y: jax.device_put(x, y.sharding), state, compiled
        )
        placed = params
        for i in range(2):
            placed, state = step(place(grads_of(params, i)), state, place(placed))
            check((placed, state))
            # Other arrays may be anywhere, but stay there: the next step is the same
            # program.
            for x, y in zip(arrays(state), arrays(compiled), strict=True):
                assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
        assert_close(jax.device_put((placed, state), whole), moment(row, 2))


@law
def test_resume_is_bit_identical(row):
    """Law 8: a stored and loaded run continues with the same bits."""
    opt = row()
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, moment(row, 3))
    file.seek(0)
    like = eqx.filter_eval_shape(lambda: (params_of(), opt.init(params_of())))
    params, state = eqx.tree_deserialise_leaves(file, like)
    for i in range(3, 5):
        _, (params, state) = both(opt, grads_of(params, i), state, params)
    assert_equal((params, state), moment(row, 5))
