"""An optimizer, a state, a model or a path where another of them belongs."""

import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import eqopt


tree, groups = eqopt.tree, eqopt.groups
MODEL = eqx.nn.MLP(3, 2, 4, 1, key=jr.key(0))
OPT = eqopt.AdamW(1e-3)
STATE = OPT.init(MODEL)
a: typing.Any = lambda x: x  # a function, and no type for a type checker

NO_STATE = [
    tree.metrics,
    tree.step_count,
    lambda x: tree.migrate(OPT, x, MODEL),
    lambda x: tree.migration_plan(OPT, x, MODEL),
    lambda x: tree.map_params(OPT, lambda y: y, x),
]
NO_MODEL = [
    OPT.init,
    eqopt.SGD(0.1).init,
    lambda x: OPT.full_params(a(MODEL), x),
    lambda x: groups.routes(OPT, x),
    lambda x: groups.table(groups.everything, x),
    lambda x: tree.nbytes(MODEL, x),
    lambda x: tree.migrate(OPT, STATE, x),
]
NO_TREE = [
    tree.norm,
    tree.size,
    tree.sum,
    tree.max,
    tree.dtype,
    tree.nbytes,
    tree.zeros_like,
    lambda x: tree.cast(x, jnp.bfloat16),
    lambda x: tree.scale(2.0, x),
    lambda x: tree.add(x, x),
    lambda x: tree.random_like(0, x),
]


@pytest.mark.parametrize("call", NO_STATE)
@pytest.mark.parametrize(
    "x",
    [OPT, eqopt.Chain(OPT), MODEL, "state"],
    ids=lambda x: getattr(x, "__name__", type(x).__name__),
)
def test_no_state(call, x):
    with pytest.raises(TypeError) as error:
        call(x)
    assert (
        f"must be the state of an optimizer, but is of type `{type(x).__name__}`. Pass "
        "what `init` or the last `step` returned: `state = opt.init(model)`."
    ) in str(error.value)


OTHERS = eqopt.ParamEMA(eqopt.SGD(0.1)), eqopt.Partition({"a": OPT}, lambda _: "a")


@pytest.mark.parametrize("call", NO_MODEL)
@pytest.mark.parametrize("state", [STATE, *(opt.init(jnp.ones(2)) for opt in OTHERS)])
def test_a_state_for_a_model(call, state):
    with pytest.raises(TypeError) as error:
        call(state)
    assert (
        "`params` must be the model, but is the state of an optimizer, of type "
        f"`{type(state).__name__}`. Were two arguments exchanged? "
    ) in str(error.value).replace("`model` must", "`params` must")


@pytest.mark.parametrize("call", NO_TREE)
def test_no_tree(call):
    for x, found in (
        (OPT, "an optimizer, of type `AdamW`"),
        ("model.eqx", "the path or string 'model.eqx'"),
    ):
        with pytest.raises(TypeError) as error:
            call(x)
        assert (
            f"must be a tree with arrays, but is {found}. Pass the model, its gradients "
            "or the state instead."
        ) in str(error.value)


def test_what_fits():
    """Models that hold states, states next to models, optimizers with arrays."""
    assert tree.metrics((MODEL, STATE)) and tree.step_count({"state": STATE}) == 0
    OPT.init({"model": MODEL, "state": STATE})
    OPT.init([MODEL, STATE])
    assert tree.metrics(None) == {} and OPT.init((None, None)) is not None
    rates = eqx.tree_at(lambda opt: opt.learning_rate, OPT, jnp.asarray(0.1))
    assert tree.norm(rates) == jnp.asarray(0.1)
    nothing = jax.tree.map(lambda _: None, OPT)  # derivatives with respect to numbers
    assert tree.norm(nothing) == 0


WRONG = {
    "a tuple for an optimizer": (
        lambda: tree.map_params(STATE, lambda x: x, a(OPT)),
        "map_params: `initable` must be an optimizer or its `init`, but is of type "
        "`tuple`. Call `map_params(opt, fn, state)`, in this order.",
    ),
    "a class for an optimizer": (
        lambda: groups.routes(eqopt.AdamW, MODEL),
        "routes: `opt` must be an optimizer, but is <class",
    ),
    "a string for a dtype": (
        lambda: tree.cast(MODEL, "bf16"),
        "`dtype` must be a dtype, such as `jnp.bfloat16` or 'bfloat16', but is 'bf16'.",
    ),
    "a string for a number": (
        lambda: tree.set(OPT, learning_rate="0.1"),
        "The new value for `.learning_rate` must be a number, but is '0.1'.",
    ),
    "a negative learning rate": (
        lambda: tree.set(eqopt.Chain(OPT), learning_rate=-1.0),
        "AdamW: `learning_rate` must not be negative, but is -1.0.",
    ),
    "a fraction of a step": (
        lambda: tree.set(STATE[0], count=2.7),
        "The new value for `.count` has dtype float32, but the old one has dtype "
        "int32. Pass an integer.",
    ),
    "a complex number for a real one": (
        lambda: tree.set(eqopt.SGD(jnp.float32(0.1)), learning_rate=0.1j),
        "The new value for `.learning_rate` has dtype complex64, but the old one has "
        "dtype float32. Pass a real number.",
    ),
    "a learning rate in a state": (
        lambda: tree.set(STATE, learning_rate=0.1),
        "tree.set: `[2].learning_rate` only records the value of the last step, and no "
        "step reads it. Change the hyperparameter in the optimizer: `opt = "
        "eqopt.tree.set(opt, learning_rate=...)`.",
    ),
    "no regular expression": (
        lambda: groups.path("layers["),
        "path: `pattern` must be a regular expression, but 'layers[' is not: ",
    ),
    "a predicate without a result": (
        lambda: groups.leaf(lambda x: None)(MODEL),
        "leaf: `predicate` must return a bool, but <lambda> returned None.",
    ),
    "a model for a part": (
        lambda: groups.where(MODEL)(MODEL),
        "groups: a part must be named by a function of the model, such as `lambda m: "
        "m.layers`, but is a model itself, of type `MLP`.",
    ),
    "a model for a part with a factor": (
        lambda: groups.layerwise_decay(0.9, MODEL)(MODEL),
        "groups: a part must be named by a function of the model",
    ),
    "a norm": (
        lambda: tree.norm(MODEL, "l2"),
        "norm: `ord` must be 1, 2 or 'inf', but",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_message(name):
    call, message = WRONG[name]
    with pytest.raises((TypeError, ValueError)) as error:
        call()
    assert str(error.value).startswith(message)


def test_the_right_order():
    with pytest.raises(
        TypeError, match=r"calls are `opt\.init\(model\)` and `opt\.step"
    ):
        OPT.init(STATE)
    with pytest.raises(TypeError, match=r"`opt\.full_params\(state, model\)`, in this"):
        OPT.full_params(a(MODEL), STATE)
