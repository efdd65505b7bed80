"""What `docs/scaling_out.md` says is communicated, counted in compiled programs."""

import jax
import jax.numpy as jnp
import pytest
from benchmarks.scaling.collectives import Collective, collectives
from benchmarks.scaling.experts import gradients
from benchmarks.scaling.extrapolation import slopes
from benchmarks.scaling.layouts import LAYOUTS, mesh_of
from benchmarks.scaling.program import bytes_in, bytes_per_device, compiled
from benchmarks.scaling.transformer import Shape
from jax.sharding import NamedSharding, PartitionSpec as P

import eqopt


pytestmark = pytest.mark.slow


ROWS, COLUMNS = 64, 256
SHAPE = Shape(vocabulary=64, width=64, heads=8, hidden=128, layers=1, length=32)
MATRIX = eqopt.MatrixDimensionNumbers()
SLOW = pytest.mark.slow


def numbers(found, kind):
    """The sizes of all collectives of a kind, in float32 numbers, the largest first."""
    return sorted((one.size // 4 for one in found if one.kind == kind), reverse=True)


@pytest.mark.parametrize(
    ("opt", "long", "short"),
    [
        (eqopt.Adam(0.1), {}, {}),
        (eqopt.ClipByGlobalNorm(1.0), {"all-reduce": [1]}, {"all-reduce": [1]}),
        pytest.param(
            eqopt.Adafactor(0.1, min_dim_size_to_factor=8),
            {"all-reduce": [ROWS + 1, 1]},
            {"all-reduce": [COLUMNS + 2, 1]},
            marks=SLOW,
        ),
        pytest.param(
            eqopt.SM3(0.1),
            {"all-reduce": [ROWS]},
            {"all-reduce": [COLUMNS]},
            marks=SLOW,
        ),
        pytest.param(
            eqopt.Muon(0.1, weight_dimension_numbers=MATRIX),
            {"all-reduce": [ROWS**2, 1]},
            None,
            marks=SLOW,
        ),
        pytest.param(
            eqopt.GaLore(0.1, rank=4, weight_dimension_numbers=MATRIX),
            {"all-reduce": [ROWS**2, 1]},
            None,
            marks=SLOW,
        ),
    ],
    ids=lambda x: (
        type(x).__name__ if isinstance(x, eqopt.AbstractTransformation) else ""
    ),
)
def test_a_matrix_in_shards(opt, long, short):
    """Split along either side; `None` where all of the matrix is gathered."""
    for spec, expected in ((P(None, "devices"), long), (P("devices", None), short)):
        split = NamedSharding(mesh_of(8), spec)
        matrix = jax.device_put(jnp.ones((ROWS, COLUMNS)), split)
        state = jax.jit(opt.init)(matrix)
        places = jax.tree.map(lambda x: x.sharding, state)
        step = jax.jit(opt.step, out_shardings=(split, places))
        found = collectives(step.lower(matrix, state, matrix).compile().as_text())
        if expected is None:
            assert numbers(found, "all-gather")[0] == ROWS * COLUMNS
            continue
        kinds = {one.kind for one in found}
        counts = {kind: numbers(found, kind) for kind in kinds}
        # XLA decides which of the few numbers travel together.
        assert kinds == expected.keys()
        for kind, sizes in expected.items():
            assert len(counts[kind]) == len(sizes), counts
            assert sum(counts[kind]) == sum(sizes), counts


@SLOW
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


@SLOW
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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "%a = f32[4,2]{1,0} all-gather(%b), replica_groups={{0,1},{2,3}}",
            Collective("all-gather", 32, 2),
        ),
        (
            "%a = (bf16[8], f32[]) all-reduce(%b, %c), replica_groups=[1,8]<=[8]",
            Collective("all-reduce", 20, 8),
        ),
        (
            "%a = f32[2] reduce-scatter(%b), replica_groups=mesh['x'=2,'y'=4] {'y'}",
            Collective("reduce-scatter", 32, 4),
        ),
        (
            "%a = f32[] all-reduce(%b), replica_groups=mesh['x'=1,'y'=4,'z'=2], "
            "device_ids=([2,4]T(1,0)) {'y'}, to_apply=%add",
            Collective("all-reduce", 4, 4),
        ),
        (
            "%a = ((f32[2]), f32[2]) all-reduce-start(%b), replica_groups={{0,1,2,3}}",
            Collective("all-reduce", 8, 4),
        ),
        (
            "%a = (f32[2], f32[8]) all-gather-start(%b), replica_groups={{0,1,2,3}}",
            Collective("all-gather", 32, 4),
        ),
        (
            "%a = s32[3] collective-permute(%b), source_target_pairs={{0,1},{1,0}}",
            Collective("collective-permute", 12, 2),
        ),
        ("%a = f32[2] all-reduce(%b), replica_groups={{0},{1}}", None),
        ("%a = f32[2] add(%b, %c)", None),
    ],
)
def test_collectives_are_read(line, expected):
    assert collectives(line) == ([] if expected is None else [expected])


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


@pytest.mark.parametrize(
    ("kind", "expected"), [("all-reduce", 12), ("all-gather", 6), ("reduce-scatter", 6)]
)
def test_bytes_that_are_sent(kind, expected):
    assert Collective(kind, 8, 4).sent == expected


@SLOW
def test_slopes_of_zero1():
    """All gradients reduced, all parameters gathered, an eighth of two moments kept."""
    slope = slopes("ZeRO-1", jax.devices())
    assert slope.sent == pytest.approx(
        {"all-reduce": 14 / 8, "all-gather": 7 / 8}, 1e-3
    )
    assert slope.state == pytest.approx(2 / 8, 1e-3)


def test_experts():
    """All tokens go to an expert and back, forward and backward: four exchanges."""
    found = gradients(jax.devices(), tokens=64, width=16, hidden=16)
    own = 4 * 64 * 16
    large = [one for one in found if one.size > own / 2]
    assert {one.kind for one in large} == {"all-to-all"}
    assert [one.size for one in large] == [own] * 4
