"""Bad input: each message names the place, what was found and expected, and the fix."""

import pathlib
import re
import traceback
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import eqopt


def mlp(width=8, depth=1):
    return eqx.nn.MLP(3, 2, width, depth, key=jr.key(0))


def grads_of(model):
    return jax.tree.map(jnp.ones_like, eqx.filter(model, eqx.is_inexact_array))


MODEL = mlp()
GRADS = grads_of(MODEL)
ADAM = eqopt.Adam(1e-3)
CLIPPED = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(1e-3))
LOOKAHEAD = eqopt.Lookahead(ADAM, 2, 0.5)


class Trainer(eqx.Module):
    net: Any
    state: Any

    def __init__(self):
        self.net = eqx.nn.BatchNorm(3, "batch", mode="batch")
        self.state = ADAM.init(self.net)


class Block(eqx.Module):
    linear: eqx.nn.Linear
    gain: Any

    def __init__(self, key):
        self.linear = eqx.nn.Linear(3, 3, key=key)
        self.gain = jnp.ones(3)


STACKED = eqx.filter_vmap(Block)(jr.split(jr.key(0), 4))
GAINS = eqx.tree_at(lambda block: block.linear, STACKED, None)  # as trained alone
MUON = eqopt.ScaleByMuon()
TRAINER, _ = eqx.nn.make_with_state(Trainer)()
weight = lambda m: m.layers[0].weight
without_weight = lambda tree: eqx.tree_at(weight, tree, None)
as_mask = lambda value: lambda params: jax.tree.map(lambda _: value, params)


def update(opt, grads=GRADS, state=None, params=MODEL, *, init=MODEL):
    opt.update(grads, opt.init(init) if state is None else state, params)


# What is done, and what the message has to say, in this order.
CASES = {
    "updates of a deeper model": (
        lambda: update(ADAM, grads_of(mlp(depth=2))),
        "`mu` has another tree structure than `updates`",
        "Only `updates` has a leaf at `.layers[2].weight`, `.layers[2].bias`",
        "Was the model or the optimizer changed after `init`",
    ),
    "complex updates of real parameters": (
        lambda: update(ADAM, jax.tree.map(lambda g: g.astype(jnp.complex64), GRADS)),
        "Adam (ScaleByAdam)",
        "dtypes do not fit at `.layers[0].weight`: `updates` is complex64[8,3]",
        "`jax.tree.map(jnp.real, updates)`",
    ),
    "updates of a wider model": (
        lambda: update(ADAM, grads_of(mlp(width=9))),
        "Shapes differ at `.layers[0].weight` ((8, 3) against (9, 3))",
    ),
    "another shape in a plain tree": (
        lambda: update(ADAM, {"w": jnp.ones(4)}, init={"w": jnp.ones(3)}),
        "Adam (ScaleByAdam): shapes do not fit at `['w']`",
        "`updates` is float32[4]",
        "`mu` is float32[3]",
    ),
    "another container": (
        lambda: update(ADAM, [jnp.ones(3)], init=(jnp.ones(3),)),
        "At the root, one has a tuple, the other a list",
    ),
    "init inside make_with_state": (
        lambda: ADAM.step(grads_of(TRAINER.net), TRAINER.state, TRAINER.net),
        "At `.batch_counter`, two StateIndexs differ in a static field",
        "call it with the model alone, and `opt.init(model)` after it",
    ),
    "integer gradient": (
        lambda: update(ADAM, jax.tree.map(lambda g: g.astype(jnp.int32), GRADS)),
        "an array of dtype int32 at `.layers[0].weight`",
        "eqx.filter_grad",
    ),
    "a model for gradients": (
        lambda: update(ADAM, MODEL),
        "`updates` has <",
        "at `.activation`",
        "eqx.filter(grads, eqopt.groups.everything(grads))",
    ),
    "no parameters for weight decay": (
        lambda: update(CLIPPED, params=None),
        "AdamW (AddDecayedWeights): the parameters are needed",
        "`update(updates, state, model)`",
    ),
    "no parameters to step": (
        lambda: ADAM.step(GRADS, ADAM.init(MODEL), None),
        "the parameters are needed, but `params` is None",
    ),
    "the other kind of parameters for Lookahead": (
        lambda: update(LOOKAHEAD, params=eqopt.LookaheadParams.init_synced(MODEL)),
        "Lookahead: `params` is LookaheadParams, but `init` got plain parameters",
    ),
    "state of another building block": (
        lambda: update(eqopt.ScaleByAdam(), state=eqopt.ScaleByLion().init(MODEL)),
        "ScaleByAdam: `state` must be of type ScaleByAdamState, but is of type "
        "ScaleByLionState. Pass the state that `init` or `update` of this optimizer",
    ),
    "state of another chain": (
        lambda: update(ADAM, state=eqopt.AdamW(1e-3).init(MODEL)),
        "`state` must be a tuple of 2 states",
        "['ScaleByAdam', 'ScaleByLearningRate']",
        "but is a tuple of 3",
    ),
    "state of another named chain": (
        lambda: update(eqopt.NamedChain(a=ADAM), state={"b": ADAM.init(MODEL)}),
        "NamedChain: `state` must be a dictionary with the keys ['a'], but is ['b']",
        "or call `eqopt.tree.migrate`",
    ),
    "another dtype than the state": (
        lambda: update(
            eqopt.Adam(1e-3, mu_dtype=jnp.bfloat16),
            state=eqopt.Adam(1e-3, mu_dtype=jnp.float32).init(MODEL),
        ),
        "Adam (ScaleByAdam): `mu_dtype` is bfloat16, but the state has float32 at "
        "`.mu.layers[0].weight`",
        "A state keeps the dtypes with which it was made",
        "Pass the same `mu_dtype`, or make a new state: `opt.init(model)`",
    ),
    "frozen before init": (
        lambda: update(ADAM, init=without_weight(MODEL)),
        "`updates` has a value at `.layers[0].weight`, which has no optimizer state",
        "Call `init` with the model",
        "or remove this gradient: `eqx.filter(grads, is_trained)`",
    ),
    "nothing to add to": (
        lambda: eqopt.apply_updates({"w": None}, {"w": jnp.ones(3)}),
        "`updates` has a value at `['w']`",
        "`params` has no array, but None",
    ),
    "several learning rates": (
        lambda: eqopt.SGD(jnp.ones(3)),
        "SGD: `learning_rate` must be a real number or a 0-d array or a schedule",
        "but is an array of shape (3,)",
        "eqx.filter_vmap",
    ),
    "a negative learning rate": (
        lambda: eqopt.AdamW(-1e-3),
        "AdamW: `learning_rate` must be in [0, inf), but is -0.001",
        "`eqopt.Chain(eqopt.Scale(-1.0), optimizer)`",
    ),
    "the model for a learning rate, as in torch": (
        lambda: eqopt.AdamW(MODEL, 1e-3),
        "AdamW: `learning_rate` is a module with matrices, `MLP`",
        "Make the optimizer without the model, and its state with it: `state = opt.",
        "A schedule is an `eqopt.schedules.AbstractSchedule`",
    ),
    "a word for a mask": (
        lambda: eqopt.AdamW(1e-3, mask="bias").init(MODEL),
        "`mask` has 'bias' at `.layers[0].weight`, but must hold `True` or `False`",
        "The functions in `eqopt.groups` make masks",
    ),
    "a number for a bool": (
        lambda: eqopt.Adam(1e-3, nesterov=1.5),
        "Adam: `nesterov` must be `True` or `False`, but is 1.5 of type float",
    ),
    "an optimizer as an argument of jax.jit": (
        lambda: jax.jit(lambda opt: opt.init(jnp.ones(3)))(eqopt.Adam(1e-3)),
        "`nesterov` determines the compiled program, so it must be a Python value",
        "`eqx.filter_jit`, or close over it",
    ),
    "the loss, without parameters": (
        lambda: update(ADAM, 1.0, params=None),
        "Adam (ScaleByAdam): `updates` has 1.0 of type float at `(the root)`",
    ),
    "a model where an array belongs": (
        lambda: eqopt.apply_updates({"w": MODEL}, {"w": jnp.ones(3)}),
        "`updates` has a value at `['w']`, where `params` has no array, but a module "
        "`MLP`. Pass the model",
    ),
    "a list for a chain": (
        lambda: eqopt.Chain([eqopt.Clip(1.0)]),
        "Chain: argument 0 must be an eqopt transformation",
        "of type list. Unpack it: `Chain(*parts)`",
    ),
    "a mask of numbers": (
        lambda: eqopt.Masked(ADAM, as_mask(1.0)).init(MODEL),
        "`mask` has 1.0 at `.layers[0].weight`",
        "must hold `True` or `False`",
    ),
    "a condition on an array for a mask": (
        lambda: eqopt.Masked(ADAM, lambda p: p.ndim > 1).init(MODEL),
        "`mask` is called once, with the tree of all parameters, and `None` elsewhere: "
        "'MLP' object has no attribute 'ndim'",
        "pass `eqopt.groups.leaf(condition)`",
    ),
    "a mask of another tree": (
        lambda: update(eqopt.AddDecayedWeights(0.1, [True, False])),
        "`mask` has another tree structure than",
        "Only `mask` has a leaf at `[0]`, `[1]`",
        "or a prefix of it",
    ),
    "a skip function that does not say so": (
        lambda: eqopt.MultiSteps(
            ADAM, 2, should_skip_update_fn=lambda g, i, p: (jnp.zeros(3), None)
        ).init(MODEL),
        "MultiSteps: `should_skip_update_fn` must return a bool or a 0-d bool array",
    ),
    "flattening a part": (
        lambda: update(eqopt.Flatten(eqopt.AdamW(0.1)), without_weight(GRADS)),
        "Flatten: `updates` has no array at `.layers[0].weight`, but the parameters "
        "given to `init` had shape",
        "init(eqx.filter(model, is_trained))",
    ),
    "an unknown norm": (
        lambda: eqopt.tree.norm(GRADS, ord=3),
        "`ord` must be 1, 2 or 'inf', but is 3",
    ),
    "nothing by a name": (
        lambda: eqopt.tree.set(ADAM, rate=1.0),
        "tree.set: nothing in this Adam has the name 'rate'",
    ),
    "another shape for a name": (
        lambda: eqopt.tree.set(eqopt.ScaleByAdam().init(MODEL), count=jnp.ones(3)),
        "`.count` is int32[], so the new value must have this shape and kind, but it",
    ),
    "an equation without an update": (
        lambda: eqopt.equation(lambda *, decay: decay),
        "must have a signature such as `(g, mu, p, *, decay)`",
    ),
    "an equation that returns another shape": (
        lambda: update(_equation(lambda g: g.sum(), None)),
        "Broken: at `.layers[0].weight`, the equation `<lambda>` turned (8, 3) into ()",
    ),
    "an equation that forgets a slot": (
        lambda: update(_equation(lambda g, trace: g, eqopt.TraceState(GRADS))),
        "new ('trace',), but returned 1 values",
    ),
    "a matrix only in `init`": (
        lambda: eqopt.ScaleByMuon().update(GAINS, MUON.init(GAINS), STACKED),
        "ScaleByMuon: `.gain` was a matrix in `init` (`mu`), but is not one now",
        "Pass the same model to `init`",
    ),
}


def _equation(fn, state):
    return _leafwise(eqopt.equation(fn), state)


def _leafwise(equation, state=None):
    class Broken(eqopt.AbstractLeafwise):
        def init(self, params):
            return state

        def leafwise(self, state, params=None, **extra):
            return eqopt.Leafwise(equation, state)

    return Broken()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.costly
def test_message(name):
    call, *phrases = CASES[name]
    pattern = ".*".join(re.escape(phrase) for phrase in phrases)
    with pytest.raises((TypeError, ValueError, KeyError), match=f"(?s){pattern}"):
        call()


@pytest.mark.parametrize("aux", [jnp.ones(()), None])
@pytest.mark.parametrize("is_traced", [False, True])
def test_a_loss_with_aux(aux, is_traced):
    """What `has_aux=True` returns is a pair, which NumPy cannot see under `jit`."""
    opt = eqopt.SkipStep(eqopt.SGD(0.1), eqopt.SigmaRule())
    state = opt.init(MODEL)
    step = lambda loss: opt.step(GRADS, state, MODEL, value=(loss, aux))
    step = eqx.filter_jit(step) if is_traced else step
    with pytest.raises(ValueError, match=r"SkipStep: `value` must be .*tuple"):
        step(jnp.ones(()))


@pytest.mark.parametrize("bad", ["updates", "state", "params"])
@pytest.mark.costly
def test_a_failing_call_changes_nothing(bad):
    """Also when everything would have been donated."""
    model = jax.tree.map(lambda x: x + 0 if eqx.is_array(x) else x, MODEL)
    arguments = {"updates": grads_of(model), "state": CLIPPED.init(model)}
    arguments |= {"params": model}
    before = jax.tree.map(lambda x: x + 0 if eqx.is_array(x) else x, arguments)
    wrong = {
        "updates": grads_of(mlp(depth=2)),
        "state": ADAM.init(MODEL),
        "params": mlp(depth=2),
    }
    step = eqx.filter_jit(
        lambda updates, state, params: CLIPPED.step(updates, state, params),
        donate="all",
    )
    with pytest.raises((TypeError, ValueError)):
        step(*(wrong[k] if k == bad else v for k, v in arguments.items()))
    assert bool(eqx.tree_equal(arguments, before))
    step(*arguments.values())


class Outer(eqopt.AbstractTransformation):
    """Calls a function of the user, which calls eqopt."""

    def init(self, params):
        return None

    def update(self, updates, state, params=None, **extra):
        return user_function(updates), state


def user_function(updates):
    return eqopt.apply_updates(updates, {"w": jnp.ones(4)})


W, OUTER = {"w": jnp.ones(3)}, eqopt.Chain(Outer(), ADAM)
WRONG_CALLS = {
    "the shape of an array": lambda: update(ADAM, jnp.ones(4), init=W["w"], params=W),
    "a shape in a compiled step": lambda: eqx.filter_jit(update)(
        CLIPPED, {"w": jnp.ones(4)}, init=W
    ),
    "a state": lambda: update(ADAM, state=eqopt.AdamW(1e-3).init(MODEL)),
    "an average": lambda: eqopt.ParamEMA(ADAM, 0.9).eval_params(None, MODEL),
    "a type in a constructor": lambda: eqopt.Adam("fast"),
    "a number in a constructor": lambda: eqopt.Adam(1e-3, b1=2.0),
    "a missing argument": lambda: eqopt.Lookahead(ADAM),
    "an unknown argument": lambda: eqopt.Adam(lr=1e-3),
    "a part of a chain": lambda: eqopt.Chain([ADAM]),
    "an unknown name": lambda: eqopt.adam,
    "a type in a function": lambda: eqopt.tree.get("learning_rate", ADAM),
    "a number in a function": lambda: eqopt.tree.set(ADAM, b1=2.0),
    "a function of the user": lambda: OUTER.step(W, OUTER.init(W), W),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_tracebacks_are_short(name):
    """They end in the user's code, or at most two frames after it."""
    with pytest.raises((TypeError, ValueError, AttributeError)) as raised:
        WRONG_CALLS[name]()
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None or raised.value.__suppress_context__
    frames = traceback.extract_tb(raised.value.__traceback__)
    package = str(pathlib.Path(eqopt.__file__).parent)
    assert sum(frame.filename.startswith(package) for frame in frames) <= 2
    assert not any("beartype" in frame.filename for frame in frames)
    if name == "a function of the user":
        assert [frame.name for frame in frames][-2:] == ["update", "user_function"]
