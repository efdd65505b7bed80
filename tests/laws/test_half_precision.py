"""Law 5, over many steps: by default, no state of a bfloat16 model stands still.

Averages and sums over steps are stored in at least float32, so they move as they do for
a float32 model. Only a copy of a parameter or of a gradient has its dtype, which is
exact. So types are enough to check most rows, and the others take many steps. In
chains, updates are rounded once, when they are returned.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt._trees.states import SLOTS, check_dtypes

from ..interpreter import interpreted
from .registry import EVERY, REGISTRY, law
from .subjects import assert_equal, grads_of, params_of
from .test_laws import law as of_telling


QUICK = {"ScaleByAdam", "ScaleByMuon", "ParamEMA(SGD)", "ScheduleFree(SGD)"}
STEPS = 500  # with one gradient, and then with twice that gradient


def after_many_steps(opt, dtype):
    """The state before and after many steps, from numbers that bfloat16 can express.

    Each step gets new parameters, because those in bfloat16 would not follow small
    updates.
    """
    half = params_of(jnp.bfloat16)
    params, grads = (
        jax.tree.map(lambda x: x.astype(dtype), tree)
        for tree in (half, grads_of(half, 0))
    )

    @jax.jit
    def run(params, grads):
        def one(state, i):
            factor = jnp.where(i < STEPS, 1, 2)
            given = lambda tree: jax.tree.map(
                lambda x: factor.astype(x.dtype) * x, tree
            )
            return opt.step(given(grads), state, given(params))[1], None

        start = opt.init(params)
        return start, jax.lax.scan(one, start, jnp.arange(2 * STEPS))[0]

    return jax.device_get(run(params, grads))


def numbers(tree):
    """The inexact arrays with their key paths, and in float64 or complex128."""
    wide = lambda x: x.astype(np.result_type(x.dtype.type(0).item(), np.float64))
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path): (x.dtype, wide(x))
        for path, x in leaves
        if isinstance(x, np.ndarray | np.generic)
        and jnp.issubdtype(x.dtype, jnp.inexact)
    }


@law(QUICK, EVERY)
@pytest.mark.costly
def test_no_default_stands_still(row):
    """Each state ends as it does in float32, and exactly so if it is narrower."""
    state = jax.eval_shape(row().init, params_of(jnp.bfloat16))
    is_narrow = lambda x: jnp.issubdtype(x.dtype, jnp.inexact) and x.dtype.itemsize < 4
    if row.name not in QUICK and not any(map(is_narrow, jax.tree.leaves(state))):
        return
    _, half = after_many_steps(row(), jnp.bfloat16)
    start, full = (numbers(x) for x in after_many_steps(row(), jnp.float32))
    for path, (dtype, found) in numbers(half).items():
        first, expected = start[path][1], full[path][1]
        if dtype.itemsize < 4:
            np.testing.assert_array_equal(found, expected, err_msg=path)
        elif np.isfinite(expected).all():
            # A value that starts at infinity may move to any number.
            moved = np.abs(expected - np.where(np.isfinite(first), first, 0))
            atol = 2**-5 * np.max(moved, initial=0) + 1e-6
            np.testing.assert_allclose(found, expected, 0, atol, err_msg=path)


HALF = jnp.ones((8, 8), jnp.bfloat16)


def dtypes_of(opt, params=HALF):
    """The dtypes of all arrays in the state with the shape of the parameter."""
    state = jax.eval_shape(opt.init, params)
    return {x.dtype for x in jax.tree.leaves(state) if x.shape == params.shape}


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (eqopt.ScaleByAdam, ["mu_dtype", "nu_dtype"]),
        (eqopt.ScaleByMuon, ["mu_dtype"]),
        (lambda **data: eqopt.SGD(0.1, momentum=0.9, **data), ["accumulator_dtype"]),
        (lambda **data: eqopt.ParamEMA(eqopt.SGD(0.1), **data), ["accumulator_dtype"]),
        (
            lambda **data: eqopt.MultiSteps(eqopt.SGD(0.1), 2, **data),
            ["accumulator_dtype"],
        ),
        (lambda **data: eqopt.GPA(eqopt.SGD(0.1), **data), ["state_dtype"]),
    ],
    ids=["Adam", "Muon", "SGD", "ParamEMA", "MultiSteps", "GPA"],
)
def test_arguments_set_other_dtypes(make, names):
    """They set exactly the named slots. By default, wider parameters set the dtype."""
    assert dtypes_of(make()) == {jnp.dtype("float32")}
    for dtype in (jnp.bfloat16, jnp.float16):
        assert dtypes_of(make(**dict.fromkeys(names, dtype))) == {jnp.dtype(dtype)}
    assert dtypes_of(make(), HALF.astype(jnp.float32)) == {jnp.dtype("float32")}
    assert jnp.dtype("complex64") in dtypes_of(make(), HALF.astype(jnp.complex64))


def parts_of(opt):
    """The transformations in an optimizer, with the parts of each recipe instead."""
    found = []
    is_opt = lambda x: isinstance(x, eqopt.AbstractTransformation)
    jax.tree.leaves(opt, is_leaf=lambda x: found.append(x) if is_opt(x) else False)
    recipes = [x for x in found if isinstance(x, eqopt.AbstractOptimizer)]
    inner = [part for recipe in recipes for part in parts_of(recipe.chain)]
    return [x for x in found if x not in recipes] + inner


@pytest.mark.slow
def test_a_dtype_that_the_state_does_not_have():
    """In a step, each class rejects a state with another dtype than its argument."""
    params, seen = {"matrix": jnp.zeros((130, 130)), "vector": jnp.zeros(2)}, set()
    with_dtype = lambda opt, name, dtype: dataclasses.replace(opt, **{name: dtype})
    for part in [part for row in REGISTRY for part in parts_of(row())]:
        for name in SLOTS:
            if not hasattr(part, name) or (type(part), name) in seen:
                continue
            narrow, wide = (
                with_dtype(part, name, dtype) for dtype in (jnp.bfloat16, jnp.float32)
            )
            try:
                states = [jax.eval_shape(x.init, params) for x in (narrow, wide)]
            except (TypeError, ValueError):  # it needs other parameters, or a schedule
                continue
            seen.add((type(part), name))
            for opt, own, other in zip(
                (narrow, wide), states, states[::-1], strict=True
            ):
                check_dtypes(opt, own)
                with pytest.raises(TypeError, match=f"`{name}` is .*but the state has"):
                    check_dtypes(opt, other)
    assert {name for _, name in seen} == {*SLOTS}
    assert len(seen) > 70


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.costly
def test_half_precision_of_numpy(dtype):
    """NumPy does not take bfloat16 for a floating dtype, but it is one."""
    params = {"w": jnp.ones(3, dtype), "n": jnp.arange(3)}
    grads = {"w": jnp.full(3, 2, dtype), "n": None}
    here, there = jax.device_get((params, grads))
    assert eqopt.tree.norm(here) == eqopt.tree.norm(params) > 1
    sam = eqopt.SAM(eqopt.SGD(0.5), opaque_mode=True)
    for opt, extra in ((eqopt.Adam(0.1), {}), (sam, {"grad_fn": lambda _: there})):
        new, _ = opt.step(grads, opt.init(params), params, **extra)
        for model in (params, here):
            out, _ = opt.step(there, opt.init(model), model, **extra)
            assert eqx.tree_equal(out["w"], new["w"])
    assert not jnp.any(eqopt.projections.l2_ball(here, 0.0)["w"])
    narrow = {"w": np.ones(3, jnp.float8_e4m3fn), "n": None}
    with pytest.raises(TypeError, match=r"float8_e4m3fn at `\['w'\]`.*least 16 bits"):
        eqopt.Adam(0.1).step(narrow, eqopt.Adam(0.1).init(params), params)


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float4_e2m1fn])
def test_narrower_floats_are_data(dtype):
    """A frozen base in 8 bits is ignored, like integers."""
    model = {"base": jnp.ones((6, 4), dtype), "up": jnp.ones((6, 2))}
    grads = {**model, "base": None}
    assert eqopt.tree.norm(model) == eqopt.tree.norm(grads)
    (route,) = eqopt.groups.routes(eqopt.Muon(0.1), model)
    assert route.path == "['up']"
    base = eqopt.groups.path("base")
    opt = eqopt.ParamEMA(eqopt.SelectiveTransform(eqopt.AdamW(0.1), freeze_mask=base))
    new, state = opt.step(grads, opt.init(model), model)
    for out in (new, opt.eval_params(state, new)):
        assert (out["base"] == model["base"]).all() and (out["up"] < 1).all()
    with pytest.raises(TypeError, match=rf"{jnp.dtype(dtype)} at `\['base'\]`"):
        opt.step(model, state, model)


@of_telling
@pytest.mark.costly
def test_nothing_is_rounded_between_parts(row):
    """In half precision, the results are those in float32, rounded at the end."""
    opt = eqopt.Chain(eqopt.Scale(0.3), row(), eqopt.Scale(0.7))
    params = params_of(jnp.bfloat16)
    state, grads = opt.init(params), grads_of(params, 0)
    # Not compiled: XLA might remove a rounding from the program.
    update = interpreted(opt.update)
    updates, new = update(grads, state, params)
    wide = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    expected, expected_new = update(wide, state, params)
    rounded = jax.tree.map(lambda u, g: u.astype(g.dtype), expected, grads)
    assert_equal((updates, new), (rounded, expected_new))
