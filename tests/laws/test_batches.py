"""On an accelerator, equal matrices are computed in batches, with the same results."""

import collections
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from jax.sharding import PartitionSpec as P

import eqopt
from eqopt._matrices.batches import BATCHINGS
from eqopt.testing._check import check
from eqopt.testing._trial import Trial

from ..interpreter import interpreted, on_an_accelerator
from ..meshes import mesh_of
from ..methods import BY_FAMILY
from .registry import PARTS, law
from .subjects import assert_close, params_of, train


# Rows for all methods for matrices, and for their building blocks.
ROWS = {row.name for method in BY_FAMILY["matrix"] for row in method.laws}
ROWS = ROWS & PARTS | {"Muon", "SOAP"}
QUICK = {"ScaleByMuon"}


def calls(text):
    """How often a lowered program computes each expensive operation."""
    parts = re.split(r"^ *func\.func (?:\w+ )?@([\w.]+)\(", text, flags=re.M)
    bodies = dict(zip(parts[1::2], parts[2::2], strict=True))

    def of(name):
        found = collections.Counter(
            re.findall(r"stablehlo\.(dot_general)|custom_call @(\w+)", bodies[name])
        )
        for callee in re.findall(r"\bcall @([\w.]+)\(", bodies[name]):
            found += of(callee)
        return found

    return of("main")


def lowered(opt, params, platform="cuda"):
    arrays, others = eqx.partition(opt.init(params), eqx.is_array)

    def step(params, arrays):
        new = opt.step(params, eqx.combine(arrays, others), params)
        return eqx.filter(new, eqx.is_array)

    traced = jax.jit(step).trace(eqx.filter(params, eqx.is_array), arrays)
    return traced.lower(lowering_platforms=(platform,)).as_text()


def expensive(*args):
    return calls(lowered(*args))


def equal(n):
    return n * [jnp.ones((4, 3))]


def times(n, found):
    return collections.Counter({name: n * count for name, count in found.items()})


# These take only sums and elementwise operations.
NOTHING_EXPENSIVE = {
    "CorrectByMARS",
    "Hyperball(Adam)",
    "KeepNorm",
    "MARS",
    "MARS(exact)",
    "MARS(lion)",
    "RadialBrake",
    "RadialBrake(component)",
    "RelativeUpdate",
    "SCALE",
    "SCALE(last layer)",
    "ScaleByLMO(columns)",
    "ScaleByRowNorm",
    "ScaleByRowRMS",
    "ScaleByRowRMS(long side)",
    "ScaleBySinkhorn",
    "SinkGD",
    "UpdateNormFloor",
    "UpdateNormFloor(row)",
}

# A batch would take 4.1 sizes of the parameters on an H100 instead of 0.2.
ONE_BY_ONE = {"ScaleByGaLore"}


@law(QUICK, ROWS)
def test_equal_matrices_are_computed_at_once(row):
    alone = expensive(row(), equal(1))
    assert bool(alone) != (row.name in NOTHING_EXPENSIVE)
    number = 3 if row.name in ONE_BY_ONE else 1
    assert expensive(row(), equal(3)) == times(number, alone)


@pytest.mark.parametrize("opt", [eqopt.SOAP(0.1), eqopt.Shampoo(0.1)], ids=repr)
@pytest.mark.costly
def test_a_cpu_computes_matrices_one_by_one(opt):
    """This shows that the law above counts the expensive operations."""
    alone = expensive(opt, equal(1), "cpu")
    assert expensive(opt, equal(3), "cpu") == times(3, alone)
    assert "lapack_ssyevd_ffi" in {name for _, name in alone}


def model():
    """Matrices of one shape: alone, with inputs first, and two in a stack."""
    make = lambda key: eqx.nn.Linear(3, 4, key=key)
    keys = jr.split(jr.key(0), 2)
    inputs_first = [jr.normal(key, (3, 4)) for key in keys]
    return make(jr.key(1)), inputs_first, eqx.filter_vmap(make)(keys), jnp.ones(2)


@pytest.fixture
def limit_batches(monkeypatch):
    def limit(size):
        for batching in BATCHINGS.values():
            for platform in batching.limits:
                monkeypatch.setitem(batching.limits, platform, size)

    return limit


# Limits in elements that fit all matrices, two matrices, and not even two. A stack is a
# batch by itself.
@pytest.mark.parametrize(("size", "batches"), [(2**24, 2), (24, 3), (23, 4)])
@pytest.mark.costly
def test_batches_are_limited(size, batches, limit_batches):
    limit_batches(size)
    opt = eqopt.ScaleByNorMuon()
    found = expensive(opt, model())
    assert found and found == times(batches, expensive(opt, equal(1)))


@pytest.mark.parametrize(("size", "batches"), [(2**24, 1), (24, 2)])
@pytest.mark.parametrize("opt", [eqopt.Muon, eqopt.NorMuon, eqopt.SOAP])
@pytest.mark.costly
def test_batches_take_turns(opt, size, batches, limit_batches):
    """A batch waits for the results of the last one, which saves memory."""
    limit_batches(size)
    count = lambda *args: lowered(*args).count("stablehlo.optimization_barrier")
    between = eqopt.Chain(opt(0.1), eqopt.ClipByGlobalNorm(1.0))
    for some in (opt(0.1), between):
        assert count(some, equal(3)) == batches - 1
        # A TPU gets few decompositions.
        on_tpu = 0 if opt is eqopt.SOAP else batches - 1
        assert count(some, equal(3), "tpu") == on_tpu
    assert count(eqopt.GaLore(0.1, 2), equal(3)) == 0
    # As large as one batch, in any number of them.
    limit_batches(27)
    assert count(opt(0.1), [jnp.ones((4, 3)), jnp.ones((5, 3))]) == 0


@pytest.mark.parametrize("opt", [eqopt.ScaleByMuon(), eqopt.ScaleByShampoo()], ids=repr)
@pytest.mark.costly
def test_stacks_keep_their_axes(opt):
    """Merged with another axis, one that is sharded would be gathered."""
    numbers = eqopt.MatrixDimensionNumbers(-2, -1)
    opt = eqx.tree_at(
        lambda x: x.weight_dimension_numbers, opt, numbers, is_leaf=lambda x: x is None
    )
    text = lowered(opt, {name: jnp.ones((2, 5, 4, 3)) for name in "ab"})
    assert "2x5x4x3xf32" in text or "2x5x3x4xf32" in text
    for merged in ("<10x", "<20x"):
        assert merged not in text


def test_precisions_share_a_batch():
    """Matrices of both dtypes are computed in float32."""
    opt, mixed = eqopt.ScaleByMuon(), [jnp.ones((4, 3), x) for x in ("f4", "bfloat16")]
    assert expensive(opt, mixed) == expensive(opt, equal(1))


@law(QUICK, ROWS)
@pytest.mark.slow
def test_batches_do_not_change_results(row, limit_batches):
    """Whole ones show whether an equation fits; what is in parts is the engine's."""
    opt, params = row(), model()
    expected = train(opt, params, 3)
    is_coarse = "xbf16>" in lowered(opt, params)
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    is_split = row.name in {*QUICK, "Muon", "SOAP"}
    for size in (1, 24, 2**24) if is_split else [1] * is_coarse + [2**24]:
        limit_batches(size)
        # A new function, so that it is traced again with the new limit.
        call = interpreted(lambda opt, grads, *rest: opt.step(grads, *rest))
        with on_an_accelerator():
            found = train(opt, params, 3, call=call)
        if size == 1 and is_coarse:
            # Products in bfloat16, in three updates with elements of size one.
            assert_close(found, expected, rtol=0.0, atol=0.3)
            expected = found
        else:
            assert_close(found, expected, **tolerance)


@law({*QUICK, "Muon", "SOAP"}, ROWS)
def test_some_matrices_differ_between_devices(row, limit_batches):
    """In a `shard_map`, as its types say; others are equal on all of them."""
    limit_batches(1)

    def step(params):
        opt = row()
        return opt.step(params, opt.init(params), params)[0]

    params = {"apart": jnp.ones((32, 3)), "equal": jnp.ones((5, 3))}
    places = {"apart": P("data"), "equal": P()}
    mesh = mesh_of()
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(places,), out_specs=places)
    jax.jit(mapped).trace(params)


LAWS = ["zero_gradients", "derivatives", "vmap"]


@law((), ROWS)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.usefixtures("uncompiled")
def test_laws_hold_on_an_accelerator(row, name):
    """They hold in the branch for accelerators, which no other law takes."""
    if name not in row.exempt:
        with on_an_accelerator():
            check(Trial(row(), params_of()), [name])


@pytest.mark.parametrize("name", ["Muon", "ScaleByMuon", "SOAP"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.costly
def test_misfits_name_the_leaf_in_batches_too(name, count):
    opt = getattr(eqopt, name)(*() if name == "ScaleByMuon" else (0.1,))
    like = lambda *args: {key: jnp.ones(*args) for key in "ab"[:count]}
    params, step = like((8, 4)), jax.jit(opt.step)
    state = opt.init(params)
    with pytest.raises(
        TypeError, match=r"dtypes do not fit at `\['a'\]`: `updates` is"
    ):
        step(like((8, 4), jnp.complex64), state, params)
    with pytest.raises(ValueError, match=r"`updates` is float32\[8,4\], `params` is"):
        step(params, state, like((8, 5)))
