"""What can be a label, and which trees of labels and masks are functions."""

import dataclasses
import enum
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


class Group(enum.Enum):
    MATRIX = "matrix"
    VECTOR = "vector"


@dataclasses.dataclass(frozen=True)
class Named:
    name: str


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    """A model that can be called, made without Equinox."""

    matrix: jax.Array
    bias: jax.Array

    def __call__(self, x):
        return self.matrix @ x + self.bias


MODEL = Model(jnp.ones((2, 2)), jnp.ones(2))
GRADS = Model(jnp.full((2, 2), 0.5), jnp.full(2, 2.0))

LABELS = [
    ("a", "b"),
    (0, 1),
    (Group.MATRIX, Group.VECTOR),
    (Named("a"), Named("b")),
]


@pytest.mark.parametrize("labels", LABELS, ids=str)
@pytest.mark.costly
def test_labels(labels, tmp_path):
    a, b = labels
    parts = {a: eqopt.SGD(1.0), b: eqopt.Adam(0.1)}
    opt = eqopt.Partition(parts, Model(a, b))
    assert opt[a] == eqopt.SGD(1.0)
    state = opt.init(MODEL)
    assert set(state.inner_states) == {a, b}
    step = eqx.filter_jit(lambda s, p: opt.step(GRADS, s, p))
    model, stepped = step(state, MODEL)
    assert jax.tree.structure(stepped) == jax.tree.structure(state)
    np.testing.assert_allclose(model.matrix, MODEL.matrix - 0.5)
    np.testing.assert_allclose(model.bias, MODEL.bias - 0.1, rtol=1e-5)
    assert eqopt.tree.get(stepped.inner_states[b], "mu").bias.shape == (2,)
    # Saved, and with other transformations in the same order.
    path = tmp_path / "state.eqx"
    eqx.tree_serialise_leaves(path, stepped)
    assert eqx.tree_equal(eqx.tree_deserialise_leaves(path, state), stepped)
    eqopt.checkpoint.save(tmp_path / "state", stepped)
    assert eqx.tree_equal(eqopt.checkpoint.load(tmp_path / "state", state), stepped)


@pytest.mark.parametrize("label", [jnp.zeros(2), "b"], ids=["array", "unknown"])
def test_values_that_are_not_labels(label):
    opt = eqopt.Partition({"a": eqopt.SGD(1.0)}, Model("a", label))
    with pytest.raises(ValueError, match=r"`\.bias` has the label"):
        opt.init(MODEL)


def test_a_label_that_no_leaf_has():
    adam = eqopt.Adam(1e-3)
    some = {"matrix": adam, "embedding": adam, 3: adam}
    opt = eqopt.Partition(some, Model("matrix", "matrix"))
    with pytest.warns(UserWarning) as warned:
        opt.init(MODEL)
    [warning] = warned
    assert "no parameter has the label 'embedding' or 3" in str(warning.message)
    opt.init(Model(None, None))  # no warning: a part without parameters has no labels
    frozen = {"matrix": adam, "frozen": eqopt.SetToZero()}
    eqopt.Partition(frozen, Model("matrix", "matrix")).init(MODEL)
    # All is used, even if one label only has an integer array.
    labels = {"weight": "matrix", "steps": "count"}
    pair = eqopt.Partition({"matrix": adam, "count": adam}, labels)
    pair.init({"weight": jnp.ones(2), "steps": jnp.array(0)})


@pytest.mark.slow
def test_a_tree_that_can_be_called_is_a_tree():
    """Masks, labels, factors and dimension numbers, of any class that JAX knows."""
    mask = Model(True, False)
    for opt in (
        eqopt.Masked(eqopt.Trace(0.9), mask),
        eqopt.Freeze(Model(False, True)),
        eqopt.AdamW(0.1, mask=mask),
        eqopt.ScaleByTree(Model(2.0, 1.0)),
        eqopt.Muon(
            0.1,
            weight_dimension_numbers=Model(eqopt.MatrixDimensionNumbers(), None),
        ),
    ):
        state = opt.init(MODEL)
        model, _ = opt.step(GRADS, state, MODEL)
        assert isinstance(model, Model)
    assert "True" in eqopt.groups.table(mask, MODEL)
    projected = eqopt.projections.box(MODEL, Model(0.0, None), None)
    assert isinstance(projected, Model)


@pytest.mark.parametrize("labels", [("a", "c"), ("a", "a")])
def test_the_state_of_other_labels(labels):
    """A state is neither missing nor dropped."""
    trace = eqopt.Trace(0.9)
    make = lambda a, b: eqopt.Partition({a: trace, b: trace}, Model(a, b))
    opt, state = make(*labels), make("a", "b").init(MODEL)
    names = re.escape(repr([*opt.names]))
    message = (
        rf"Partition: `state\.inner_states` must .* keys {names}, but is \['a', 'b'\]"
    )
    for call in (opt.step, opt.update):
        with pytest.raises(TypeError, match=message):
            call(GRADS, state, MODEL)
    with pytest.raises(TypeError, match=message):
        opt.eval_params(state, MODEL)


@pytest.mark.parametrize(
    "whole",
    [
        eqopt.Partition({"a": eqopt.SGD(0.1), 2: eqopt.SGD(0.2)}, "a"),
        eqopt.NamedChain(a=eqopt.Trace(0.9), b=eqopt.SGD(0.1)),
    ],
    ids=["partition", "chain"],
)
def test_a_part_by_its_name(whole):
    assert whole["a"] is whole.transformations[0]
    with pytest.raises(KeyError, match="'c'"):
        whole["c"]


@pytest.mark.parametrize(
    "around",
    [lambda opt: opt, eqopt.ParamEMA, lambda opt: eqopt.MultiSteps(opt, 1)],
    ids=["alone", "ParamEMA", "MultiSteps"],
)
def test_the_rest_of_a_model_needs_no_label(around):
    """`init` gets the trained part, `step` and `eval_params` the whole model."""
    model = {"base": jnp.ones(2), "up": jnp.ones(2), "down": jnp.ones(2)}
    grads = {**model, "base": None}
    labels = eqopt.groups.label({x: eqopt.groups.path(x) for x in ("up", "down")})
    rates = {"up": eqopt.SGD(1.0), "down": eqopt.SGD(2.0)}
    opt = around(eqopt.Partition(rates, labels))
    new, state = opt.step(grads, opt.init(grads), model)
    found = opt.eval_params(state, new)
    assert [float(found[x][0]) for x in ("base", "up", "down")] == [1, 0, -1]
    with pytest.raises(ValueError, match=r"`\['base'\]`"):
        opt.step(model, state, model)
