"""`eqopt.tree.map_params` over the registry: the states of all transformations."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt.tree import map_params

from .registry import TELLING, law
from .subjects import awkward, params_of


# Rows whose parameters cannot be inferred from only the state.
NOT_INFERRED = {
    "ScaleBySM3(no momentum)": "it has accumulators by axis alone",
    "SM3(schedule, matrices)": "it has accumulators by axis alone",
    "ScaleByFactoredRMS(small)": "it has sums over rows and columns alone",
    "ScaleByFactoredRMS(dimension numbers)": "it has sums over rows and columns alone",
    "Adafactor": "it has sums over rows and columns alone",
    "GaLore": "its moments are those of projections",
    "ScaleByAPOLLO": "its moments are those of projections",
    "ScaleByAPOLLO(singular vectors)": "its moments are those of projections",
    "ScaleByAPOLLO(scaled before the limit)": "its moments are those of projections",
    "APOLLO": "its moments are those of projections",
    "Flatten(nested)": "it has vectors of all parameters",
}

# Rows whose state does not declare `PerLeaf`: a number for each parameter then stands
# for a scalar parameter.
BY_SHAPE = {"AdamMini"}
# The same, without any tree like the parameters: what is inferred is something else.
ONLY_OTHERS = {"Monitor", "ScaleByGaLore", "SinkGD(width rule)"}

# By path in `params_of`: the shape there, and another one with as many axes.
PLACES = {
    "['matrix']": ((3, 2), (5, 7)),
    "['more'][0]": ((3,), (11,)),
    "['more'][2]['scalar']": ((), ()),
}


def larger():
    shapes = iter(other for _, other in PLACES.values())
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(next(shapes), x.dtype), params_of()
    )


def by_path(state):
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): x for path, x in leaves}


@functools.lru_cache(maxsize=1)
def expected_of(row):
    """The paths of the leaves that stand for parameters, by their paths and shapes.

    A leaf stands for a scalar parameter if it is a vector when the parameter is one. No
    part of a tuple, such as factors, stands for a parameter.
    """
    opt, params = row(), params_of()
    here, there = (
        by_path(eqx.filter_eval_shape(opt.init, p)) for p in (params, larger())
    )
    vector = eqx.tree_at(
        lambda p: p["more"][2]["scalar"], params, jax.ShapeDtypeStruct((2,), "float32")
    )
    grown = by_path(eqx.filter_eval_shape(opt.init, vector))
    return {
        path
        for path, x in here.items()
        for key, (shape, other) in PLACES.items()
        if key in path
        and x.shape == shape
        and not path.rpartition(key)[2].startswith("[")
        and there[path].shape == other
        and (shape != () or grown[path].shape == (2,))
    }


@functools.lru_cache(maxsize=1)
def found_with_params(row):
    return found(row(), params_of(), params=params_of())


def found(opt, model, **given):
    state = eqx.filter_eval_shape(opt.init, model)
    marked = map_params(
        opt,
        lambda x, p: p.shape == x.shape,
        state,
        model,
        transform_non_params=lambda x: None,
        **given,
    )
    marks = by_path(marked)
    assert all(mark is True for mark in marks.values())
    return set(marks)


@law()
def test_parameters_are_found(row):
    assert agree(row, found_with_params(row))


def agree(row, paths):
    expected = expected_of(row)
    return paths >= expected if row.name in BY_SHAPE else paths == expected


@law(TELLING)
def test_a_square_matrix(row):
    """Its factors, which have its shape, do not stand for it."""
    square = params_of() | {"matrix": jnp.ones((3, 3))}
    assert found(row(), square, params=square) == found_with_params(row)


IN_BLOCKS = eqopt.groups.matrices(eqopt.groups.path("more"), 0, 1, output_blocks=(5, 1))


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.ScaleBySOAP(one_sided=True),
        eqopt.ScaleByShampoo(one_sided=True),
        eqopt.ScaleBySOAP(max_precond_dim=4),
        eqopt.ScaleBySOAP(max_precond_dim=5),
        eqopt.ScaleBySOAP(weight_dimension_numbers=IN_BLOCKS),
    ],
)
@pytest.mark.costly
def test_no_factor_stands_for_a_square_matrix(opt):
    """Whichever side has one, at the limit of sizes, and next to given blocks."""
    params = {"square": jnp.ones((4, 4)), "more": jnp.ones((4, 6))}
    own = {f".{slot}['{name}']" for slot in ("mu", "nu") for name in params}
    state = opt.init(params)
    expected = {path for path in by_path(state) if path in own}
    assert found(opt, params, params=params) == expected


@pytest.mark.slow
@law()
def test_parameters_are_inferred(row):
    """They are inferred from only the state, or `map_params` raises an error."""
    if row.name in ONLY_OTHERS:
        pytest.skip("its trees have other shapes, and do not say so")
    if row.name in NOT_INFERRED:
        with pytest.raises(ValueError, match="params=model"):
            found(row(), params_of())
        return
    assert agree(row, found(row(), params_of()))


@pytest.mark.slow
@law()
def test_in_whole_models(row):
    """Each leaf is paired with the parameter that has its shape."""
    opt, model = row(), awkward()
    state = eqx.filter_eval_shape(opt.init, model)
    shapes = []
    meet = lambda x, p: shapes.append((x.shape, p.shape))
    map_params(opt, meet, state, model, params=model)
    assert all(ours == theirs for ours, theirs in shapes)
    assert bool(shapes) == bool(found_with_params(row))
