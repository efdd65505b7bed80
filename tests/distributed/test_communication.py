"""What `docs/scaling_out.md` says is communicated, counted in compiled programs."""

import jax
import jax.numpy as jnp
import pytest
from benchmarks.scaling.collectives import Collective, collectives
from benchmarks.scaling.experts import gradients
from benchmarks.scaling.layouts import LAYOUTS, mesh_of
from benchmarks.scaling.program import bytes_in, bytes_per_device, compiled
from benchmarks.scaling.transformer import Shape
from jax.sharding import NamedSharding, PartitionSpec as P

import eqopt


pytestmark = pytest.mark.slow


ROWS, COLUMNS = 64, 256
SHAPE = Shape(vocabulary=64, width=64, heads=8, hidden=128, layers=1, length=32)
MATRIX = eqopt.MatrixDimensionNumbers()


def numbers(found, kind):
    """The sizes of all collectives of a kind, in float32 numbers, the largest first."""
    return sorted((one.size // 4 for one in found if one.kind == kind), reverse=True)


SHARDED = [
    (eqopt.Adam(0.1), [], []),
    (eqopt.ClipByGlobalNorm(1.0), [1], [1]),
    (eqopt.Adafactor(0.1, min_dim_size_to_factor=8), [ROWS + 1, 1], [COLUMNS + 2, 1]),
    (eqopt.SM3(0.1), [ROWS], [COLUMNS]),
    (eqopt.Muon(0.1, weight_dimension_numbers=MATRIX), [ROWS**2, 1], None),
    (eqopt.GaLore(0.1, 4, weight_dimension_numbers=MATRIX), [ROWS**2, 1], None),
]


@pytest.mark.parametrize(("opt", "rows", "columns"), SHARDED)
def test_a_matrix_in_shards(opt, rows, columns):
    """What is reduced if it is split along either side; `None` where it is gathered."""
    sides = P(None, "devices"), P("devices", None)
    for spec, expected in zip(sides, (rows, columns), strict=True):
        split = NamedSharding(mesh_of(8), spec)
        matrix = jax.device_put(jnp.ones((ROWS, COLUMNS)), split)
        state = jax.jit(opt.init)(matrix)
        places = jax.tree.map(lambda x: x.sharding, state)
        step = jax.jit(opt.step, out_shardings=(split, places))
        found = collectives(step.lower(matrix, state, matrix).compile().as_text())
        if expected is None:
            assert numbers(found, "all-gather")[0] == ROWS * COLUMNS
            continue
        assert {one.kind for one in found} <= {"all-reduce"}
        # XLA decides which of the few numbers travel together.
        sizes = numbers(found, "all-reduce")
        assert len(sizes) == len(expected) and sum(sizes) == sum(expected)


@pytest.mark.parametrize("side", [0, 1])
def test_blocks_that_devices_hold_whole(side):
    """Each block is a matrix of its own, so nothing is sent."""
    blocks = {("reduction_blocks", "output_blocks")[side]: 8}
    numbers = eqopt.MatrixDimensionNumbers(0, 1, **blocks)
    opt = eqopt.Muon(0.1, weight_dimension_numbers=numbers)
    matrix = jax.random.normal(jax.random.key(0), (ROWS, COLUMNS))
    expected, _ = opt.step(matrix, opt.init(matrix), matrix)
    spec = P(None, "devices") if side else P("devices", None)
    matrix = jax.device_put(matrix, NamedSharding(mesh_of(8), spec))
    state = jax.jit(opt.init)(matrix)
    step = jax.jit(opt.step).lower(matrix, state, matrix).compile()
    assert not collectives(step.as_text())
    found, _ = step(matrix, state, matrix)
    assert jnp.allclose(found, expected, atol=1e-5)


def test_whole_matrices_in_some_steps():
    """In the other steps, each device has whole blocks, and nothing is sent."""

    def orthogonal(**blocks):
        numbers = eqopt.MatrixDimensionNumbers(0, 1, **blocks)
        return eqopt.Orthogonalize(
            "polar_express_8", scale="match_rms", weight_dimension_numbers=numbers
        )

    kinds = whole, blocks = orthogonal(), orthogonal(output_blocks=8)
    opt = eqopt.Chain(
        eqopt.ConditionallyTransform(whole, lambda step: step % 2 == 0),
        eqopt.ConditionallyTransform(blocks, lambda step: step % 2 > 0),
    )
    matrix = jax.random.normal(jax.random.key(0), (ROWS, COLUMNS))
    given = jax.device_put(matrix, NamedSharding(mesh_of(8), P(None, "devices")))
    state = jax.jit(opt.init)(given)
    update = jax.jit(opt.update).lower(given, state, given).compile()
    branches, _, always = update.as_text().partition("\nENTRY ")
    assert collectives(branches) and not collectives(always)
    for kind in kinds:
        found, state = update(given, state, given)
        expected, _ = kind.update(matrix, kind.init(matrix))
        assert jnp.allclose(found, expected, atol=1e-5)
        # As large as 0.2 times the entries of an orthogonal matrix of that shape.
        assert jnp.sqrt(jnp.mean(found**2)) == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_transformer(name):
    """The loss of one device, and no more than the layout needs."""
    opt = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(1e-3))
    single = compiled(LAYOUTS["data parallel"], opt, SHAPE, 16, mesh_of(1))
    several = compiled(LAYOUTS[name], opt, SHAPE, 16, mesh_of(8))
    found, (params, state, _) = several.collectives, several.shapes
    total = bytes_in(params)
    share = bytes_per_device(params) / total
    moments = bytes_per_device(state) / (2 * total)
    gathered = 4 * sum(numbers(found, "all-gather"))
    reduced = 4 * sum(numbers(found, "all-reduce"))
    if name == "tensor parallel":
        assert share < 0.3 and moments < 0.3
    else:
        assert share == pytest.approx(1 / 8 if "FSDP" in name else 1, rel=0.01)
        is_split = name != "data parallel"
        assert moments == pytest.approx(1 / 8 if is_split else 1, rel=0.01)
        assert gathered == pytest.approx(total if is_split else 0, rel=0.01)
        assert reduced == pytest.approx(total, rel=0.01)
    losses = []
    for program in (single, several):
        params, state, tokens = program.start()
        values = []
        for _ in range(2):
            params, state, value = program.step(params, state, tokens)
            values.append(float(value))
        losses.append(values)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


READ = {
    "f32[4,2]{1,0} all-gather(%b), {{0,1},{2,3}}": ("all-gather", 32, 2),
    "(bf16[8], f32[]) all-reduce(%b, %c), [1,8]<=[8]": ("all-reduce", 20, 8),
    "f32[2] reduce-scatter(%b), mesh['x'=2,'y'=4] {'y'}": ("reduce-scatter", 32, 4),
    "((f32[2]), f32[2]) all-reduce-start(%b), {{0,1,2,3}}": ("all-reduce", 8, 4),
    "(f32[2], f32[8]) all-gather-start(%b), {{0,1,2,3}}": ("all-gather", 32, 4),
    "f32[2] all-reduce(%b), {{0},{1}}": None,
    "f32[2] add(%b, %c)": None,
}


@pytest.mark.parametrize("line", READ)
def test_collectives_are_read(line):
    found = collectives("%a = " + line.replace("), ", "), replica_groups="))
    assert found == ([] if READ[line] is None else [Collective(*READ[line])])


def test_loops_are_counted():
    text = """
%inner (x: f32[2]) -> f32[2] {
  %a = f32[2] all-reduce(%x), replica_groups={{0,1}}
}
%outer (x: f32[2]) -> f32[2] {
  %b = f32[2] while(%x), body=%inner, backend_config={"known_trip_count":{"n":"3"}}
}
ENTRY %main (x: f32[2]) -> f32[2] {
  %c = f32[2] while(%x), body=%outer, backend_config={"known_trip_count":{"n":"5"}}
  %d = f32[2] all-reduce(%x), replica_groups={{0,1}}
}
"""
    assert len(collectives(text)) == 2
    assert len(collectives(text, with_loops=True)) == 16


def test_experts():
    """All tokens go to an expert and back, forward and backward: four exchanges."""
    found = gradients(jax.devices(), tokens=64, width=16, hidden=16)
    own = 4 * 64 * 16
    large = [one for one in found if one.size > own / 2]
    assert {one.kind for one in large} == {"all-to-all"}
    assert [one.size for one in large] == [own] * 4
