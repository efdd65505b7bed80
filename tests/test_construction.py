"""Calls of classes with arguments that they do not take."""

import inspect
import pathlib
import re
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt
from eqopt import AbstractTransformation
from eqopt._arguments.construction import Module


PAGE = pathlib.Path(__file__).parents[1] / "docs" / "coming_from_optax.md"


def public_classes():
    """What users create; states are made by `init`."""
    public = [getattr(eqopt, name) for name in dir(eqopt)]
    rooms = [room for room in public if isinstance(room, types.ModuleType)]
    public += [getattr(r, n) for r in rooms for n in getattr(r, "__all__", ())]
    return {
        cls
        for cls in public
        if isinstance(cls, type)
        and issubclass(cls, eqx.Module)
        and not re.search("(State|Info)$", cls.__name__)
    }


NAMES_ITS_PARTS = {eqopt.NamedChain, eqopt.Partition}


@pytest.mark.parametrize("cls", sorted(public_classes(), key=str))
def test_an_unknown_argument_is_named(cls):
    assert issubclass(cls, Module)
    if cls in NAMES_ITS_PARTS:
        return
    with pytest.raises(TypeError, match=f"`{cls.__name__}` has no argument `wrong`. "):
        cls(wrong=1)


def renamed():
    """The arguments that have another name in Optax, as the page has them."""
    for line in PAGE.read_text().splitlines():
        cells = line.split("|")
        classes = re.findall(r"\[`eqopt\.([A-Z]\w+)`\]", line)
        if len(cells) != 5 or len(classes) != 1:
            continue
        pairs = re.findall(r"`(\w+)`,? was `(\w+)`", cells[3])
        pairs += [(b, a) for a, b in re.findall(r"`(\w+)` is `(\w+)`", cells[3])]
        for ours, theirs in pairs:
            yield classes[0], theirs, ours


@pytest.mark.parametrize("cls, theirs, ours", list(renamed()))
def test_the_page_and_the_errors_agree(cls, theirs, ours):
    with pytest.raises(TypeError, match=f"`{theirs}` is called `{ours}` here"):
        getattr(eqopt, cls)(**{theirs: 1})


ADAM = eqopt.Adam(1e-3)
CASES = {
    "torch's learning rate": (
        lambda: eqopt.Adam(lr=1e-3),
        "`Adam` has no argument `lr`. `lr` is called `learning_rate` here. "
        "Its arguments are `learning_rate`, `b1`, ",
    ),
    "torch's betas": (
        lambda: eqopt.Adam(1e-3, betas=(0.9, 0.99)),
        "`betas=(b1, b2)` as `b1=..., b2=...`",
    ),
    "weight decay of Adam": (
        lambda: eqopt.Adam(1e-3, weight_decay=0.1),
        "Use `eqopt.AdamW`, which has it",
    ),
    "weight decay of SGD": (
        lambda: eqopt.SGD(1e-3, weight_decay=0.1),
        "`eqopt.Chain(eqopt.AddDecayedWeights(1e-4), optimizer)`",
    ),
    "a mask of an optimizer": (
        lambda: eqopt.SGD(1e-3, mask=True),
        "`eqopt.SelectiveTransform(optimizer, freeze_mask=frozen)`, with `True` for",
    ),
    "a mask of a wrapper": (
        lambda: eqopt.MultiSteps(ADAM, 2, mask=True),
        "`eqopt.SelectiveTransform(optimizer, freeze_mask=frozen)`",
    ),
    "a mask of a chain": (
        lambda: eqopt.Chain(ADAM, mask=True),
        "`eqopt.SelectiveTransform(optimizer, freeze_mask=frozen)`",
    ),
    "a mask of a building block": (
        lambda: eqopt.Trace(0.9, mask=True),
        "Wrap it: `eqopt.Masked(transformation, mask)`",
    ),
    "the decay of torch's RMSprop": (
        lambda: eqopt.RMSprop(1e-3, alpha=0.9),
        "`alpha` is called `decay` here",
    ),
    "the momentum of other Muons": (
        lambda: eqopt.Muon(0.02, momentum=0.95),
        "`momentum` is called `beta` here",
    ),
    "the Adam in Optax's Muon": (
        lambda: eqopt.Muon(0.02, adam_learning_rate=1e-3),
        "Pass it to the fallback: `fallback=eqopt.AdamW(..., nesterov=True)`. Its ",
    ),
    "half a step": (
        lambda: eqopt.MultiSteps(ADAM, 2.5),
        "must be an integer, a 0-d integer array or a schedule, but is 2.5",
    ),
    "Optax's labels": (
        lambda: eqopt.Partition(transforms={}, param_labels=0),
        "`transforms` is called `transformations` here",
        "`param_labels` is called `labels` here.",
    ),
    "Optax's inner optimizer": (
        lambda: eqopt.MultiSteps(opt=ADAM, every_k_schedule=2),
        "`opt` is called `inner` here",
    ),
    "a typo": (
        lambda: eqopt.schedules.Linear(init_val=0.1),
        "`Linear` has no argument `init_val`. Did you mean `init_value`",
    ),
    "nothing at all": (
        lambda: eqopt.Adam(),
        "`Adam`: missing a required argument: 'learning_rate'. Its arguments are",
    ),
    "one of three": (
        lambda: eqopt.Lookahead(ADAM),
        "`Lookahead`: missing 2 required arguments: 'sync_period' and "
        "'slow_step_size'. Its arguments are `inner`, ",
    ),
    "too much": (
        lambda: eqopt.Clip(1, 2),
        "`Clip`: too many positional arguments. Its arguments are `max_delta`",
    ),
    "a part of a recipe": (
        lambda: Recipe(0.1),
        "Recipe: `Trace` has no argument `wrong`",
    ),
    "Optax in a chain": (
        lambda: eqopt.Chain(optax.clip(1.0)),
        "argument 0 is a optax.",
        "Wrap it: `eqopt.interop.optax.from_optax(tx)`",
    ),
    "Optax in a partition": (
        lambda: eqopt.Partition({"a": optax.adam(1e-3)}, "a"),
        "Wrap it: `eqopt.interop.optax.from_optax(tx)`",
    ),
    "mini-steps of Optax": (
        lambda: eqopt.Lookahead(optax.MultiSteps(optax.adam(1e-3), 2), 2, 0.5),
        "Lookahead: `inner` must be an eqopt `AbstractTransformation`",
        "`eqopt.interop.optax.from_optax(tx.gradient_transformation())`",
    ),
    "a function of Optax": (
        lambda: eqopt.MultiSteps(optax.adam, 2),
        "`eqopt.interop.optax.from_optax(adam(...))`",
    ),
    "a class": (
        lambda: eqopt.MultiSteps(eqopt.Adam, 2),
        "the class Adam. Create an instance of it",
    ),
}


class Recipe(eqopt.AbstractOptimizer):
    decay: float

    @property
    def chain(self):
        return eqopt.Trace(self.decay, wrong=1)


@pytest.mark.parametrize("name", CASES)
def test_message(name):
    call, *phrases = CASES[name]
    with pytest.raises(TypeError, match=".*".join(map(re.escape, phrases))):
        call()


def wrappers():
    annotated = lambda cls: getattr(cls, "__annotations__", {}).get("inner")
    return sorted(
        (c for c in public_classes() if annotated(c) is AbstractTransformation), key=str
    )


@pytest.mark.parametrize("cls", wrappers())
def test_no_wrapper_takes_a_transformation_of_optax(cls):
    names = [name for name in cls.__annotations__ if name != "inner"]
    arguments = dict.fromkeys(names, 1)
    with pytest.raises(TypeError, match=r"eqopt.interop.optax.from_optax\(tx\)"):
        cls(inner=optax.adam(1e-3), **arguments)


def test_other_errors_are_left_alone():
    class Failing(AbstractTransformation):
        rate: float

        def __init__(self, rate):
            raise TypeError("its own")

        def init(self, params): ...

        def update(self, updates, state, params=None, **extra):
            return updates, state

    with pytest.raises(TypeError, match=r"^its own$"):
        Failing(1.0)


@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.int32, "float8_e4m3fn", "wide"])
@pytest.mark.parametrize(
    "name", ["mu_dtype", "nu_dtype", "accumulator_dtype", "state_dtype", "param_dtype"]
)
@pytest.mark.costly
def test_dtypes_of_states_are_real(name, dtype):
    owners = [c for c in public_classes() if name in getattr(c, "__annotations__", {})]
    owners = [cls for cls in owners if issubclass(cls, AbstractTransformation)]
    assert owners
    for cls in owners:
        needed = cls.__annotations__.keys() - {*dir(cls)}
        arguments = {key: _given(key) for key in needed} | {name: dtype}
        message = f"^{cls.__name__}: `{name}` must be float16, bfloat16, float32 or"
        with pytest.raises(TypeError, match=message):
            cls(**arguments)


class Coded(eqopt.AbstractTransformation):
    """Holds classes, and integers, on purpose."""

    layer: type[eqx.Module] | None = eqx.nn.Linear
    unknown: "type[NotImported]" = eqx.nn.Linear  # type: ignore
    static: Any = eqx.field(static=True, default=eqx.nn.Linear)
    given: Any = None
    code_dtype: Any = eqx.field(static=True, default=jnp.int8)

    def init(self, params): ...

    def update(self, updates, state, params=None, **extra):
        return updates, state


def test_classes_and_dtypes_that_are_meant():
    assert Coded().layer is Coded().unknown is Coded().static is eqx.nn.Linear
    with pytest.raises(
        TypeError, match=r"Coded: `given` is the class `Linear`. Create"
    ):
        Coded(given=eqx.nn.Linear)


class Learned(eqopt.schedules.AbstractSchedule):
    weights: jax.Array

    def __call__(self, count):
        return self.weights.sum()


def test_a_schedule_with_matrices():
    opt, params = eqopt.SGD(Learned(jnp.full((2, 2), 0.125))), jnp.ones(2)
    new, _ = opt.step(params, opt.init(params), params)
    np.testing.assert_allclose(new, 0.5)


def _given(name):
    values = {
        "inner": ADAM,
        "decay": 0.9,
        "key": 0,
        "every_k_schedule": 2,
        "freq": 1,
        "start": 1,
    }
    return values.get(name, 0.1)


def _raise(error):
    raise error


def _decoded():
    b"\xff".decode()


def _branch(decay):
    return 1 if decay > 0 else 2


# What can go wrong while a recipe makes its parts: none of it may lose its text.
FAILURES = {
    "with a name": lambda: _raise(ValueError("Trace: `decay` is wrong")),
    "without a colon": lambda: _raise(ValueError("it is all wrong")),
    "a colon in the text": lambda: _raise(TypeError("these two are wrong: a, b")),
    "nothing": lambda: _raise(ValueError),
    "two arguments": lambda: _raise(ValueError("wrong", 3)),
    "a subclass": lambda: _raise(UnicodeError("wrong: text")),
    "five arguments": _decoded,
    "a traced number": lambda: jax.jit(_branch)(1.0),
    "a type check": lambda: eqopt.Trace("fast"),
    "a key": lambda: {}["wrong"],
    "a number": lambda: 1 / 0,
}


@pytest.mark.parametrize("name", FAILURES)
def test_errors_of_a_recipe_keep_class_and_text(name):
    failure = FAILURES[name]

    class Failing(eqopt.AbstractOptimizer):
        learning_rate: float

        @property
        def chain(self):
            failure()
            return eqopt.Chain()

    with pytest.raises(Exception) as bare:
        failure()
    with pytest.raises(type(bare.value)) as raised:
        Failing(0.1)
    assert type(raised.value) is type(bare.value)
    said = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "Failing" in said
    assert str(bare.value).removeprefix("Trace: ")[:300] in said


def test_errors_of_a_recipe_name_it_once():
    with pytest.raises(ValueError, match=r"^Adam: `b1` must be in"):
        eqopt.Adam(1e-3, b1=2.0)
    with pytest.raises(ValueError, match=r"^Adafactor: `decay_offset` must be an int"):
        eqopt.Adafactor(0.1, decay_offset=-1)


def test_signatures_have_types():
    """Also fields that are converted: Equinox writes `Any` for them.

    The arrays of a distribution can also be axes, for `jax.vmap`.
    """
    untyped = []
    for cls in public_classes() - {eqopt.monte_carlo.MultiNormalDiag}:
        for x in inspect.signature(cls).parameters.values():
            if x.annotation is Any and x.kind != x.VAR_POSITIONAL:
                untyped.append(f"{cls.__name__}.{x.name}")
    assert not untyped
    assert "fragments: int | numpy.integer = 1" in str(inspect.signature(eqopt.DiLoCo))
    assert "axis: int = 0" in str(inspect.signature(eqopt.QKClip))
    with pytest.raises(TypeError, match="GaLore: `rank` must be a Python integer, but"):
        eqopt.GaLore(1e-3, rank="a")  # type: ignore
    assert eqopt.GaLore(1e-3, rank=np.int64(4)).rank == 4


def test_annotations_that_are_strings():
    """As after `from __future__ import annotations`, perhaps with unknown names."""

    class Wrapped(eqopt.AbstractTransformation):
        inner: "eqopt.AbstractTransformation"
        other: "Unknown" = None  # type: ignore  # nothing has this name

        def init(self, params):
            return None

        def update(self, updates, state, params=None, **extra):
            return updates, state

    message = "Wrapped: `inner` must be an eqopt `AbstractTransformation`, but is"
    with pytest.raises(TypeError, match=message):
        Wrapped(eqopt.Adam, 1)
    assert Wrapped(eqopt.SGD(0.1), 1).other == 1
