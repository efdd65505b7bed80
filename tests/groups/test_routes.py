"""What an optimizer does to each parameter, and rules that say which are matrices."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt
from eqopt import groups
from eqopt.groups import MatrixRules, matrices, no_matrices, path, stacked

from .writings import GUIDE, RULES, WRITINGS, Axis, NamedArray, guide_of, losses


Numbers = eqopt.MatrixDimensionNumbers
NO_HIDDEN = no_matrices(path("embedding|positions|head"))
# The models of the guide, of its size, as shapes.
SHAPES = eqx.filter_eval_shape(GUIDE.Transformer, jr.key(0))
MODELS = {way: eqx.filter_eval_shape(make, SHAPES) for way, make in WRITINGS.items()}

OPTIMIZERS = {
    "guide": lambda rules: GUIDE.make_optimizer(400, rules),
    "SOAP": lambda rules: eqopt.SOAP(0.02, weight_dimension_numbers=NO_HIDDEN | rules),
    "Hyperball": lambda rules: eqopt.Hyperball(
        eqopt.ScaleByMuon(weight_dimension_numbers=NO_HIDDEN | rules),
        0.02,
        weight_dimension_numbers=NO_HIDDEN | rules,
    ),
}


def by_name(routes):
    """The routes without the paths and the order of the axes, and the bytes of states."""
    # haliax has no name for what is in a named array.
    paths = [x.path.removesuffix("[<flat index 0>]") for x in routes]
    names = [re.findall(r"(?!weight|array)\b\w+", path)[-1] for path in paths]
    found = [(x.taken_by, x.matrices, x.weight_decay, x.factor) for x in routes]
    nbytes = {name: x.nbytes for name, x in zip(names, routes, strict=True)}
    return dict(zip(names, found, strict=True)), nbytes


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.costly
def test_two_writings_have_the_same_routes(name):
    """The model of the guide, with its optimizer, and with others for matrices."""
    (first, nbytes), (other, its_bytes) = (
        by_name(groups.routes(OPTIMIZERS[name](RULES[way]), MODELS[way]))
        for way in WRITINGS
    )
    assert other == first
    # Blocks of 8 bits are of the last axis, so their number depends on the order.
    assert its_bytes == pytest.approx(nbytes, rel=0.02 if name == "guide" else 0)
    assert len(first) == 10
    assert {name: found[1] for name, found in first.items() if found[1]} == {
        "qkv": ((9, 64, 64),),
        "out": ((3, 64, 64),),
        "up": ((3, 256, 64),),
        "down": ((3, 64, 256),),
    }


def test_the_rule_of_the_guide_leaves_biases_out():
    layer = eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 12, key=key))
    model = {"qkv": layer(jr.split(jr.key(0), 3))}
    opt = eqopt.Muon(0.1, weight_dimension_numbers=RULES["layers"])
    weight, bias = groups.routes(opt, model)
    assert weight.matrices == ((9, 4, 4),) and not bias.matrices


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")  # the guide multiplies by vectors
def test_two_writings_have_the_same_losses():
    """To rounding: their products sum in another order. haliax has its own test."""
    guide = guide_of(VOCABULARY=11, WIDTH=8, HEADS=2, LAYERS=2, LENGTH=7)
    made = guide.Transformer(jr.key(0))
    first, other = (
        losses(guide, WRITINGS[way](made), RULES[way]) for way in ("arrays", "layers")
    )
    assert first[-1] < first[0] - 0.05, first
    np.testing.assert_allclose(other, first, rtol=1e-5)


def test_adam_mini_takes_the_same_rules():
    """A block for each output of a matrix, and for each layer of a gain."""
    words = matrices(path("embedding|positions"), inputs=-1, outputs=-2)
    head = matrices(path("head"), inputs=0, outputs=1)
    blocks = {"layers": groups.layer_blocks, "arrays": words | head | GUIDE.MATRICES}
    opts = {way: eqopt.AdamMini(1.0, block_axes=blocks[way]) for way in WRITINGS}
    found = [by_name(groups.routes(opts[way], MODELS[way])) for way in WRITINGS]
    assert found[0] == found[1]
    gain = {"gain": jnp.ones((3, 4)), "up": jnp.ones((3, 4, 5))}
    state = eqopt.AdamMini(1.0, block_axes=stacked(lambda m: m)).init(gain)
    nu = eqopt.tree.get(state, "nu")
    assert nu["gain"].shape == (3, 1) and nu["up"].shape == (3, 1, 5)
    single = eqopt.AdamMini(1.0, block_axes=Numbers(0, 1)).init(jnp.ones((4, 5)))
    assert eqopt.tree.get(single, "nu").shape == (1, 5)


TABLE = """
path                shape    taken by            matrices     axes   decay  factor  state
['layers'][0-1][0]  (3,)     Muon > ScaleByAdam  -            -      -      -       48
['layers'][0-1][1]  (3, 12)  Muon > ScaleByMuon  1 of 12 x 3  1 x 0  0.1    2       288
""".strip()


def test_the_table():
    model = {"layers": [(jnp.ones(3), jnp.ones((3, 12))) for _ in range(2)], "n": None}
    is_weight = groups.leaf(lambda x: x.ndim == 2)
    opt = eqopt.Muon(0.1, weight_decay=0.1, mask=is_weight)
    routes = groups.routes(opt, model)
    assert str(routes) == TABLE
    assert isinstance(routes, tuple) and len(routes) == 4
    vector, matrix = routes[:2]
    of_vector = "['layers'][0][0]", (3,), "float32", "Muon > ScaleByAdam"
    assert vector == groups.Route(*of_vector, (), (), (), None, None, 24)
    assert (matrix.matrices, matrix.outputs, matrix.inputs) == (
        ((1, 12, 3),),
        (1,),
        (0,),
    )
    assert (matrix.weight_decay, matrix.factor, matrix.nbytes) == (0.1, 2.0, 144)
    assert str(matrix).splitlines()[1].startswith("['layers'][0][1]  (3, 12)  Muon")


ADAM, ETA = eqopt.ScaleByAdam(), eqopt.schedules.Linear(1.0, 0.0, 10)
IS_A = {"a": True, "b": False}


@pytest.mark.parametrize(
    ("opt", "a", "b"),
    [
        (ADAM, "ScaleByAdam", "ScaleByAdam"),
        (
            eqopt.Partition({"x": eqopt.SGD(0.1), 1: ADAM}, {"a": "x", "b": 1}),
            "'x' > SGD",
            "1 > ScaleByAdam",
        ),
        (
            eqopt.SelectiveTransform(eqopt.Adam(0.1), freeze_mask=IS_A),
            "SelectiveTransform > frozen",
            "SelectiveTransform > Adam > ScaleByAdam",
        ),
        (
            eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), ADAM, eqopt.Freeze(IS_A)),
            "ClipByGlobalNorm + ScaleByAdam + Freeze",
            "ClipByGlobalNorm + ScaleByAdam",
        ),
        (
            eqopt.MultiSteps(eqopt.NamedChain(x=eqopt.Masked(ADAM, IS_A)), 2),
            "ScaleByAdam",
            "-",
        ),
        (
            eqopt.GaLore(0.1, rank=2),
            "GaLore > ScaleByGaLore + ScaleByAdam",
            "GaLore > ScaleByAdam",
        ),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, eqx.Module) else "",
)
def test_who_takes_it(opt, a, b):
    params = {"a": jnp.ones((4, 3)), "b": jnp.ones(3)}
    assert [x.taken_by for x in groups.routes(opt, params)] == [a, b]


@pytest.mark.parametrize(
    ("opt", "decay", "factor"),
    [
        (eqopt.AdamW(0.1, weight_decay=ETA), ETA, None),
        (eqopt.AdamW(0.1, weight_decay=eqopt.AddDecayedWeights(0.2)), 0.2, None),
        (eqopt.Muon(0.1, consistent_rms=0.5), None, 1.0),
        (eqopt.Orthogonalize(scale="spectral"), None, 2.0),
        (eqopt.Chain(eqopt.Scale(3.0), eqopt.ScaleByTree(0.5)), None, 1.5),
        (
            eqopt.Scheduled(
                eqopt.Chain(eqopt.Scale(0.5), eqopt.Scale(ETA), eqopt.Scale(3.0))
            ),
            None,
            ETA,
        ),
    ],
    ids=str,
)
def test_decay_and_factor(opt, decay, factor):
    (route,) = groups.routes(opt, [jax.ShapeDtypeStruct((4, 3), jnp.float32)])
    assert (route.weight_decay, route.factor) == (decay, factor)


def test_factors_of_layers():
    params, factors = (
        jnp.ones((3, 2)),
        groups.layerwise_decay(0.5, stacked(lambda m: m)),
    )
    (route,) = groups.routes(eqopt.ScaleByTree(factors), params)
    np.testing.assert_array_equal(route.factor[:, 0], [0.25, 0.5, 1])
    assert "0.25 to 1" in str(route) and "Linear" in str(
        groups.routes(eqopt.AdamW(0.1, weight_decay=ETA), params)
    )
    rows = groups.table(factors, params).splitlines()
    assert len(rows) == 5 and rows[1].startswith("0.25 to 1 ")


GAIN, UP = jnp.ones((3, 4)), jnp.ones((3, 4, 5))
NAMED = NamedArray(UP, (Axis("layers", 3), Axis("embed", 4), Axis("mlp", 5)))
FIRST = groups.path("up")


def muon(rules, params):
    return lambda: eqopt.Muon(0.1, weight_dimension_numbers=rules).init(params)


@pytest.mark.parametrize(
    ("call", "messages"),
    [
        (
            muon(matrices(FIRST, -2, -1), {"gain": GAIN, "up": UP}),
            [
                "Muon (ScaleByMuon): `['gain']` has shape (3, 4), and no layer of",
                "`eqopt.groups.no_matrices(selector)`",
            ],
        ),
        (
            muon(stacked(lambda m: m), {"up": UP, "norm": jnp.ones(4)}),
            [
                "all arrays of a stack must have the same first axes",
                "`['up']` has shape (3, 4, 5), and `['norm']` has shape (4,)",
            ],
        ),
        (
            muon(matrices(FIRST, "embed", "heads"), {"up": NAMED}),
            ["no axis 'heads' in `['up'].array`, which has the axes ('layers',"],
        ),
        (
            muon(no_matrices(FIRST) | matrices(FIRST, -2, -1), {"up": UP}),
            ["`path('up')` comes too late: earlier rules match all"],
        ),
        (
            muon(stacked(lambda m: ()), {"up": UP}),
            ["`where(<lambda>)` matches no parameter."],
        ),
        (
            lambda: eqopt.AdamMini(0.1, block_axes=no_matrices(path("gain"))).init(
                {"gain": GAIN, "up": UP}
            ),
            ["(ScaleByAdamMini): `['up']` has", "Pass `block_axes=eqopt.groups."],
        ),
    ],
)
def test_errors(call, messages):
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    for message in messages:
        assert message in str(error.value)


def test_rules():
    """Two stacks, names, and what no rule matches."""
    params = {
        "up": jnp.ones((2, 3, 4, 5)),
        "gain": GAIN,
        "named": NAMED,
        "w": jnp.ones((4, 5)),
    }
    rules = (
        stacked(path(r"^\['up'\]"), 2)
        | matrices(path("named"), inputs="mlp", outputs=["embed"])
        | no_matrices(path("gain"))
    )
    found = rules(params)
    assert found["up"] == Numbers(-2, -1) and found["gain"] is None
    assert found["named"].array == Numbers((2,), (1,)) and found["w"] == Numbers(0, 1)
    assert hash(rules) == hash(
        stacked(path(r"^\['up'\]"), 2) | MatrixRules(rules.rules[1:])
    )
    # A side of a kernel is no sign of a stack.
    kernels = {"qkv": jnp.ones((4, 3, 2, 2)), "up": jnp.ones((4, 5))}
    found = matrices(path("qkv"), 0, (2, 3))(kernels)
    assert found["up"] == Numbers(0, 1)


def test_a_model_that_is_one_array():
    """Both tables name its place, which has no path."""
    params = jnp.ones(3)
    for shown in (
        eqopt.groups.table(eqopt.groups.everything, params),
        str(eqopt.groups.routes(eqopt.Adam(0.1), params)),
    ):
        assert shown.splitlines()[-1].startswith("(the root)")
