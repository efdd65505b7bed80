"""`eqopt.DistributeMatrices` on 8 devices: what is sent, and equal results."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from benchmarks.scaling.collectives import collectives
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import eqopt
from eqopt._matrices import batches, matrixwise
from eqopt._trees.stacked import without_stacks

from ..laws.subjects import assert_equal
from ..meshes import DEVICES, entered, mesh_of


# Six equal matrices, sharded along either side; two of another shape, which are left to
# XLA; and experts, sharded so that nothing needs to be sent.
EQUAL = {f"row{i}": ((16, 24), P("data")) for i in range(5)}
EQUAL |= {"column": ((16, 24), P(None, "data"))}
EXPERTS = {"experts": ((2, 8, 6, 4), P(None, "data"))}
ALL = EQUAL | EXPERTS | {f"other{i}": ((8, 24), P("data")) for i in range(2)}
ALL |= {"vector": ((16,), P("data"))}


def numbers(params):
    return jax.tree.map(
        lambda x: None if x.ndim == 1 else eqopt.MatrixDimensionNumbers(-2, -1), params
    )


def values(leaves, seed=0):
    keys = jr.split(jr.key(seed), len(leaves))
    return {
        k: jr.normal(key, shape)
        for key, (k, (shape, _)) in zip(keys, leaves.items(), strict=True)
    }


def shardings(leaves, mesh):
    return {k: NamedSharding(mesh, spec) for k, (_, spec) in leaves.items()}


def train(opt, params, grads):
    state, step = opt.init(params), jax.jit(opt.step)
    for _ in range(2):
        params, state = step(grads, state, params)
    return params, state


def check(inner, leaves, mesh, atol=2e-5):
    """Two steps equal those without the wrapper, and all arrays stay where they are."""
    params, grads = values(leaves), values(leaves, 1)
    expected = jax.device_get(train(inner, params, grads))
    places = shardings(leaves, mesh)
    opt = eqopt.DistributeMatrices(inner, mesh=None if mesh.explicit_axes else mesh)
    with entered(mesh):
        given = jax.device_put((params, grads), (places, places))
        found = train(opt, *given)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(jax.device_get(x), y, rtol=1e-4, atol=atol)
    for path, x in jax.tree_util.tree_leaves_with_path(found):
        name = str(getattr(path[-1], "key", None))
        if name in leaves and x.shape == leaves[name][0]:
            assert x.sharding.is_equivalent_to(places[name], x.ndim), path


@pytest.mark.parametrize(
    "kind", [AxisType.Auto, AxisType.Explicit], ids=lambda x: x.name
)
@pytest.mark.slow
def test_muon(kind):
    check(eqopt.Muon(0.1, weight_dimension_numbers=numbers), ALL, mesh_of(kind))


@eqopt.equation
def centered(g, trace):
    trace = 0.5 * trace + g
    return g - jnp.mean(trace @ trace.T) * trace, trace


class Centered(eqopt.AbstractMatrixwise):
    """A method of users: devices exchange all arrays of its equation."""

    weight_dimension_numbers: object = None

    def init(self, params):
        return eqopt.TraceState(self.for_matrices(params, lambda x: x))

    def matrixwise(self, state, params=None, **extra):
        return eqopt.Leafwise(centered, state)


def in_8_bits(**numbers):
    muon, bits = eqopt.ScaleByMuon(**numbers), eqopt.storage.BlockwiseQuantized()
    return eqopt.StoreState(muon, bits, eqopt.groups.everything)


# Few leaves, because each method is compiled.
FEW = {f"row{i}": ((16, 24), P("data")) for i in range(5)} | EXPERTS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "atol"),
    [
        (functools.partial(eqopt.NorMuon, 0.1), 2e-5),
        (functools.partial(eqopt.Dion2, 0.1), 2e-5),
        (Centered, 2e-5),
        (in_8_bits, 0.02),  # scales that differ by rounding
    ],
    ids=lambda x: getattr(getattr(x, "func", x), "__name__", ""),
)
def test_other_methods(make, atol):
    check(make(weight_dimension_numbers=numbers), FEW, mesh_of(), atol)


# Leaves, and what is sent, in matrices of 16 x 24.
@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({f"row{i}": ((16, 24), P("data")) for i in range(8)}, {"all-to-all": 2}),
        ({f"whole{i}": ((16, 24), P()) for i in range(8)}, {"all-gather": 8}),
        (EXPERTS, {}),
        ({"layers": ((8, 16, 24), P(None, "data"))}, {"all-to-all": 2}),
    ],
)
@pytest.mark.slow
def test_what_is_sent(leaves, expected):
    """The matrices as shards, and their results; experts stay where they are."""
    mesh = mesh_of()
    places = shardings(leaves, mesh)
    opt = eqopt.DistributeMatrices(
        eqopt.ScaleByMuon(weight_dimension_numbers=numbers), mesh=mesh
    )
    params = jax.device_put(values(leaves), places)
    program = jax.jit(opt.update).lower(params, opt.init(params)).compile()
    found = {}
    for one in collectives(program.as_text()):
        found[one.kind] = found.get(one.kind, 0) + one.size / (4 * 16 * 24)
    assert found == expected


@pytest.mark.slow
def test_parts_change_nothing(monkeypatch):
    """Matrices are exchanged in parts, here of one and two for each device."""
    leaves = {f"row{i}": ((16, 24), P("data")) for i in range(32)}
    mesh, places = mesh_of(), shardings(leaves, mesh_of())
    params, grads = jax.device_put((values(leaves), values(leaves, 1)), (places,) * 2)
    found = []
    for matrices in (4, 2, 1):
        limits = batches.DIVIDED.limits
        monkeypatch.setitem(limits, "default", matrices * 16 * 24)
        opt = eqopt.DistributeMatrices(
            eqopt.Muon(0.1, weight_dimension_numbers=numbers), mesh=mesh
        )
        state = opt.init(params)
        program = jax.jit(lambda *args, opt=opt: opt.step(*args))
        program = program.lower(grads, state, params).compile()
        kinds = [one.kind for one in collectives(program.as_text())]
        assert kinds.count("all-to-all") == 2 * 4 // matrices
        found.append(jax.device_get(program(grads, state, params)))
    assert_equal(found[1], found[0])
    assert_equal(found[2], found[0])


ROWS = {f"row{i}": ((16, 24), P("data")) for i in range(8)}


def preconditioned(make, **options):
    # Directions without a gradient are rounding errors, which SOAP and Shampoo divide by
    # `eps`.
    if make is not eqopt.PSGDKron:
        options["eps"] = 0.01
    return make(0.1, **{"weight_dimension_numbers": numbers, **options})


@pytest.mark.parametrize(
    ("make", "leaves", "kind"),
    [
        pytest.param(eqopt.SOAP, ROWS, AxisType.Auto, marks=pytest.mark.slow),
        pytest.param(eqopt.SOAP, FEW, AxisType.Explicit, marks=pytest.mark.slow),
        pytest.param(eqopt.Shampoo, FEW, AxisType.Auto, marks=pytest.mark.slow),
        pytest.param(eqopt.KLShampoo, ROWS, AxisType.Auto, marks=pytest.mark.slow),
        pytest.param(eqopt.PSGDKron, FEW, AxisType.Auto, marks=pytest.mark.slow),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_preconditioners_stay(make, leaves, kind):
    """Results are equal, and only gradients and updates are sent.

    Of five matrices, three devices have none.
    """
    inner = preconditioned(make, precondition_frequency=1)
    mesh = mesh_of(kind)
    given, grads = values(leaves), values(leaves, 1)
    expected, state, alone = given, inner.init(given), jax.jit(inner.step)
    alone = alone.lower(grads, state, given).compile()
    for _ in range(2):
        expected, state = alone(grads, state, expected)
    opt = eqopt.DistributeMatrices(inner, mesh=None if mesh.explicit_axes else mesh)
    with entered(mesh):
        params, grads = jax.device_put((given, grads), (shardings(leaves, mesh),) * 2)
        state = jax.jit(opt.init)(params)
        places = jax.tree.map(lambda x: x.sharding, (params, state))
        for x in jax.tree.leaves(state):
            assert x.ndim == 0 or x.sharding.is_equivalent_to(
                NamedSharding(mesh, P("data")), x.ndim
            )
        step = jax.jit(opt.step, donate_argnums=(1, 2), out_shardings=places)
        step = step.lower(grads, state, params).compile()
        for _ in range(2):
            old = params, state
            params, state = step(grads, state, params)
            assert all(x.is_deleted() for x in jax.tree.leaves(old) if x.ndim)
    for name, x in expected.items():
        np.testing.assert_allclose(params[name], x, rtol=1e-4, atol=2e-4)
    sent = {"all-to-all": 0}
    for one in collectives(step.as_text()):
        sent[one.kind] = sent.get(one.kind, 0) + one.size / (4 * 16 * 24)
    assert sent == {"all-to-all": 2}
    if leaves is ROWS:
        flops, of_all = (x.cost_analysis()["flops"] for x in (step, alone))
        assert flops <= 1.1 / DEVICES * of_all


@pytest.mark.parametrize(
    "method",
    [eqopt.SOAP, eqopt.Shampoo, eqopt.KLShampoo, eqopt.PSGDKron, eqopt.MOSO],
    ids=lambda x: x.__name__,
)
@pytest.mark.slow
def test_shares_are_computed_in_parts(method, monkeypatch):
    """Each device computes one or two matrices at a time, with equal results.

    Of 17 experts, it has three, which parts of two do not divide.
    """
    leaves = {f"row{i}": ((16, 24), P()) for i in range(32)}
    leaves |= {"experts": ((17, 16, 24), P()), "layers": ((2, 17, 12, 8), P())}
    leaves |= {"vector": ((16,), P())}
    params, grads = values(leaves), values(leaves, 1)
    inner = preconditioned(method, precondition_frequency=1)
    expected, _ = train(inner, params, grads)
    opt = eqopt.DistributeMatrices(inner, mesh=mesh_of())
    for matrices in (2, 1):
        monkeypatch.setattr(matrixwise, "SHARE", matrices * 16 * 24)
        found, _ = jax.device_get(train(opt, params, grads))
        for name, x in expected.items():
            np.testing.assert_allclose(found[name], x, rtol=1e-4, atol=2e-4)


LAYERS = {f"row{i}": ((6, 4), P()) for i in range(5)}
LAYERS |= {"layers": ((3, 6, 4), P()), "experts": ((12, 8, 3, 5), P())}
# An axis with blocks comes before the axis of the stack.
LAYERS |= {"blocks": ((6, 3, 4), P())}


def with_blocks(params):
    blocks = eqopt.MatrixDimensionNumbers(0, 2, reduction_blocks=2)
    return numbers(params) | {"blocks": blocks}


@pytest.mark.slow
def test_a_state_moves_to_other_devices(tmp_path):
    """Through a file: to 3 of them, which divide other axes, to one, and back to 8."""
    inner = preconditioned(eqopt.Shampoo, weight_dimension_numbers=with_blocks)
    params, grads = values(LAYERS), values(LAYERS, 1)

    def on(devices, kind=jax.make_mesh):
        mesh = kind((devices,), ("data",), axis_types=(AxisType.Auto,))
        return eqopt.DistributeMatrices(inner, mesh=mesh)

    few = lambda sizes, names, axis_types: jax.make_mesh(
        sizes, names, axis_types, devices=jax.devices()[: math.prod(sizes)]
    )
    steps = [on(8), on(3, few), inner, on(8)]
    like = [on(8, AbstractMesh), on(3, AbstractMesh), inner]
    expected, reference, alone = params, inner.init(params), jax.jit(inner.step)
    state = steps[0].init(params)
    for i, opt in enumerate(steps):
        if i:
            eqopt.checkpoint.save(tmp_path / "state.eqx", state)
            shapes = eqx.filter_eval_shape(like[i - 1].init, params)
            old = eqopt.checkpoint.load(tmp_path / "state.eqx", shapes)
            state = eqopt.tree.migrate(opt, old, params)
            again = eqopt.tree.migrate(steps[i - 1], state, params)
            found, kept = jax.device_get((again, old))
            assert_equal(without_stacks(found), without_stacks(kept))
        params, state = jax.device_get(jax.jit(opt.step)(grads, state, params))
        expected, reference = alone(grads, reference, expected)
    for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-4)


def test_one_device():
    """The same program as without the wrapper."""
    opt, params = eqopt.Muon(0.1), {"w": jnp.ones((4, 3)), "v": jnp.ones((4, 3))}
    same = eqopt.DistributeMatrices(opt, mesh=mesh_of(data=1))
    state = opt.init(params)
    programs = [jax.make_jaxpr(x.step)(params, state, params) for x in (opt, same)]
    assert str(programs[0]) == str(programs[1])


def test_errors_of_stacks():
    """The state of a preconditioner is for the same leaves, wrapper and devices."""
    soap, params = eqopt.ScaleBySOAP(), {x: jnp.ones((4, 3)) for x in "ab"}
    on = lambda devices: eqopt.DistributeMatrices(soap, mesh=mesh_of(data=devices))
    state = jax.eval_shape(on(8).init, params)
    for opt, given, updates, message in (
        (soap, state, params, "`state` was made with `eqopt.Dist"),
        (on(8), soap.init(params), params, "`state` was made without `eqopt.Dist"),
        (on(8), state, {**params, "b": None}, r"has stacks of the leaves \(\(0,\),\)"),
        (on(4), state, params, "a stack of 8 matrices, but on 4 devices it has 4"),
    ):
        with pytest.raises(ValueError, match=f"ScaleBySOAP: .*{message}"):
            jax.eval_shape(opt.update, updates, given)
