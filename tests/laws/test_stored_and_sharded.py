"""A stored state on several devices: types and steps as on one, but divided.

Every storage runs with AdamW, and 8 bits also with other methods and wrappers; for a few
methods of each kind, `init` is compiled with every storage. Another law compiles `init`
for every row, plain and in 8 bits.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import eqopt
from eqopt import storage
from eqopt._trees.stored import is_stored

from ..interpreter import interpreted
from ..meshes import mesh_of
from .subjects import arrays, avals, normal
from .test_pairs import WRAPPERS


ADAMW = eqopt.AdamW(1e-2, weight_decay=0.1)
METHODS = {
    "AdamW": ADAMW,
    "Lion": eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.Lion(1e-2)),
    "Muon": eqopt.Muon(1e-2, weight_dimension_numbers=eqopt.groups.layer_matrices),
    "ScheduleFreeAdamW": eqopt.ScheduleFreeAdamW(1e-2),
    **{
        name: WRAPPERS[name](eqopt.Adam(1e-2))
        for name in ("Mechanic", "MultiSteps", "ParamEMA")
    },
}
STATES = {
    "8 bits": storage.BlockwiseQuantized(),
    "4 bits": storage.BlockwiseQuantized(4),
    "float8": storage.Float8(),
    "bfloat16": storage.Cast(),
    "drawn": storage.StochasticRounding(),
}
PARAMS = {
    "split": storage.SplitMasterWeights(),
    "split, 8": storage.SplitMasterWeights(8),
    "Kahan": storage.KahanSummation(),
    "masters": storage.MasterWeights(),
    "drawn parameters": storage.StochasticRounding(),
}
# Each of 8 devices gets whole blocks, whether rows or columns are divided. The masks of
# the wrappers use these names.
EVEN = {"matrix": (16, 2048), "vector": (8192,), "scalar": (8, 2, 2048)}
UNEVEN = {"matrix": (13, 700), "vector": (4099,), "scalar": (16, 512)}
LARGE = 64  # larger arrays of the state are divided
# Methods other than AdamW store one leaf, because compiling takes most of the time.
ONE = {"matrix": True, "more": [False, None, {"scalar": False}]}
BY_LEAF = ("AdamW", "MultiSteps", "ParamEMA", "ScheduleFreeAdamW")


def cases(*layouts, methods=METHODS):
    """Every storage with AdamW, and 8 bits with every method; one is quick.

    AdamW with 8 bits has every layout, and each other case has one of them in turn.
    """
    quick = {("8 bits", "AdamW", "columns")}
    pairs = [(name, "AdamW") for name in {**STATES, **PARAMS} if name != "8 bits"]
    pairs += [("8 bits", name) for name in methods if name != "AdamW"]
    chosen = [("8 bits", "AdamW", layout) for layout in layouts]
    chosen += [(*pair, layouts[i % len(layouts)]) for i, pair in enumerate(pairs)]
    return pytest.mark.parametrize(
        ("stored", "method", "layout"),
        [
            pytest.param(*case, marks=[] if case in quick else pytest.mark.slow)
            for case in chosen
        ],
    )


def wrapped(stored, inner):
    """`inner`, wrapped in this storage."""
    if stored in STATES:
        where = eqopt.groups.everything if inner is ADAMW else ONE
        return eqopt.StoreState(inner, STATES[stored], where)
    return eqopt.StoreParams(inner, PARAMS[stored])


def values(stored, shapes, seed=0):
    dtypes = len(shapes) * [jnp.float32 if stored in STATES or seed else jnp.bfloat16]
    matrix, vector, scalar = normal(seed, [*shapes.values()], dtypes)
    return {"matrix": matrix, "more": [vector, None, {"scalar": scalar}]}


def trained(opt, params, grads, steps=3, program=jax.jit):
    """The first state, and the last parameters and state; each step is one program."""

    def one_step(size, state, params):
        now = jax.tree.map(lambda g: g * size, grads)
        return opt.step(now, state, params, value=jnp.float32(1))

    step = program(one_step)
    first = state = program(lambda params: opt.init(params))(params)
    for i in range(steps):
        params, state = step(jnp.float32(1 + i), state, params)
    return first, params, state


@functools.cache
def alone(stored, method, is_even=True):
    """What `trained` returns, on one device."""
    shapes = EVEN if is_even else UNEVEN
    grads = values(stored, shapes, 1)
    opt = wrapped(stored, METHODS[method])
    return trained(opt, values(stored, shapes), grads, program=interpreted)


def assert_same(found, expected):
    """Equal except for rounding, which sometimes leads to the next code."""
    for x, y in zip(arrays(found), arrays(expected), strict=True):
        x, y = (np.asarray(z, np.float32) for z in (x, y))
        assert np.isclose(x, y, 1e-5, 1e-6).mean() > 0.98
        assert np.isclose(x, y, 0.02, 2e-3).mean() > 0.999
        np.testing.assert_allclose(x, y, 0, 0.02)


def assert_divided(state, devices=8):
    for x in arrays(state):
        if x.size > LARGE:
            [share] = {shard.data.size for shard in x.addressable_shards}
            assert share * devices == x.size, (x.shape, x.sharding)


STORED = {
    "AdamW": ADAMW,
    "Muon": METHODS["Muon"],
    "Prodigy": eqopt.Prodigy(),
    "ScheduleFreeAdamW": METHODS["ScheduleFreeAdamW"],
    "SOAP": eqopt.SOAP(
        1e-2, max_precond_dim=16, weight_dimension_numbers=eqopt.groups.layer_matrices
    ),
}


@pytest.mark.parametrize(
    "stored", [pytest.param(x, marks=pytest.mark.slow) for x in {**STATES, **PARAMS}]
)
def test_where_a_compiled_init_puts_the_state(stored):
    """Where its parameter is, on 2 x 4 devices; other large arrays are divided, too."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    specs = {
        "matrix": P("x", "y"),
        "more": [P("y"), None, {"scalar": P("y", None, "x")}],
    }
    params = jax.tree.map(
        lambda x, spec: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=NamedSharding(mesh, spec)
        ),
        values(stored, EVEN),
        specs,
    )
    opts = {name: _everything(stored, opt) for name, opt in STORED.items()}
    init = lambda params: {name: opt.init(params) for name, opt in opts.items()}
    places = jax.jit(init).lower(params).compile().output_shardings
    shapes = jax.tree_util.tree_leaves_with_path(jax.eval_shape(init, params))
    own = {p.shape: p.sharding for p in jax.tree.leaves(params)}
    for (path, x), place in zip(shapes, jax.tree.leaves(places), strict=True):
        if x.shape in own:
            assert place.is_equivalent_to(own[x.shape], x.ndim), (path, place)
        elif x.size > 4 * LARGE:
            parts = x.size // np.prod(place.shard_shape(x.shape))
            assert parts >= 4, (path, x.shape, place)


def _everything(stored, opt):
    if stored in STATES:
        return eqopt.StoreState(opt, STATES[stored], eqopt.groups.everything)
    return eqopt.StoreParams(opt, PARAMS[stored])


@cases("rows", "columns", "explicit")
def test_sharded_parameters(stored, method, layout):
    first, params, _ = alone(stored, method)
    kind = AxisType.Explicit if layout == "explicit" else AxisType.Auto
    mesh, opt = mesh_of(kind, x=8), wrapped(stored, METHODS[method])
    before = lambda x: [None] * (x.ndim - 1) * (layout == "columns")
    place = lambda x: jax.device_put(x, NamedSharding(mesh, P(*before(x), "x")))
    given, grads = (jax.tree.map(place, values(stored, EVEN, i)) for i in (0, 1))
    with jax.set_mesh(mesh):
        compiled, found, last = trained(opt, given, grads)
        states = [compiled, last, *[opt.init(given)] * (method == "AdamW")]
    for state in states:
        assert avals(state) == avals(first)
        assert_divided(state)
    assert_same(found, params)


@cases("by hand", methods=BY_LEAF)
def test_inside_shard_map(stored, method, layout):
    """The parameters are shards there, and are stored like whole parameters."""
    first, params, last = alone(stored, method)
    opt = wrapped(stored, METHODS[method])
    is_whole = lambda x: x.ndim == 0 or x.dtype == jnp.uint32  # the bits of a key
    specs = jax.tree.map(lambda x: P() if is_whole(x) else P("x"), last)
    of_params, of_state = len(EVEN) * [P("x")], jax.tree.leaves(specs)

    def work(params, grads):
        return jax.tree.leaves(trained(opt, params, grads))

    work = jax.shard_map(
        work,
        mesh=mesh_of(x=2),
        in_specs=P("x"),
        out_specs=of_state + of_params + of_state,
    )
    found = jax.jit(work)(*(values(stored, EVEN, i) for i in (0, 1)))
    expected = jax.tree.leaves((first, params, last))
    assert avals(found) == avals(expected)
    if stored in PARAMS:  # low bits by themselves say little about a number
        found, expected = (x[len(of_state) : -len(of_state)] for x in (found, expected))
    if "drawn" not in stored:  # the shards draw the same numbers
        assert_same(found, expected)


def test_a_shard_below_the_threshold():
    """As `where` documents: by default, small shards keep their state in float32."""
    params = {"w": jnp.ones((6, 1024))}
    init = lambda where: jax.eval_shape(
        jax.shard_map(
            lambda params: eqopt.tree.get(
                eqopt.StoreState(ADAMW, STATES["8 bits"], where).init(params), "mu"
            )["w"],
            mesh=mesh_of(x=2),
            in_specs=P("x"),
            out_specs=P("x"),
        ),
        params,
    )
    assert not is_stored(init(None)) and is_stored(init(eqopt.groups.everything))


@cases("inside ZeRO-1")
def test_inside_zero1(stored, method, layout):
    first, params, last = alone(stored, method, is_even=False)
    inner, mesh = wrapped(stored, METHODS[method]), mesh_of(x=8)
    opt = eqopt.ZeRO1(inner, "x", mesh)
    place = functools.partial(jax.device_put, device=NamedSharding(mesh, P()))
    given, grads = (place(values(stored, UNEVEN, i)) for i in (0, 1))
    compiled, found, state = trained(opt, given, grads)
    for each in (compiled, state, *[opt.init(given)] * (method == "AdamW")):
        assert_divided(each)
        own = jax.eval_shape(lambda state: state._without_padding.inner_state, each)
        assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, first)
    assert all(x.sharding.is_fully_replicated for x in arrays(found))
    assert_same(found, params)
    name = "eval_params" if stored in STATES else "full_params"
    expected = interpreted(lambda *x: getattr(inner, name)(*x))(last, params)
    assert_same(jax.jit(lambda *x: getattr(opt, name)(*x))(state, found), expected)


@cases("outside ZeRO-1", methods=["AdamW"])
def test_outside_zero1(stored, method, layout):
    """Stored parameters are sharded like their hidden parts; a state is an error."""
    mesh = mesh_of(x=8)
    opt = wrapped(stored, eqopt.ZeRO1(METHODS[method], "x", mesh))
    place = functools.partial(jax.device_put, device=NamedSharding(mesh, P()))
    given, grads = (place(values(stored, UNEVEN, i)) for i in (0, 1))
    if stored in STATES:
        with pytest.raises(ValueError, match="Put `ZeRO1` outside"):
            jax.eval_shape(opt.init, given)
        return
    _, params, last = alone(stored, method, is_even=False)
    _, found, state = trained(opt, given, grads)
    assert_divided(state.inner_state)
    assert_same(found, params)
    full = wrapped(stored, METHODS[method]).full_params(last, params)
    assert_same(jax.jit(lambda *x: opt.full_params(*x))(state, found), full)
