"""Calls of classes with arguments that they do not take."""

import inspect
import itertools
import pathlib
import pickle
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


def test_an_unknown_argument_is_named():
    for cls in public_classes() - {eqopt.NamedChain, eqopt.Partition}:  # name parts
        assert issubclass(cls, Module)
        with pytest.raises(TypeError, match=f"^{cls.__name__}: no argument `wrong`. "):
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


def test_the_page_and_the_errors_agree():
    assert [*renamed()]
    for cls, theirs, ours in renamed():
        message = f"^{cls}: no argument `{theirs}`. It is called `{ours}` here.$"
        with pytest.raises(TypeError, match=message):
            getattr(eqopt, cls)(**{theirs: 1})


ADAM = eqopt.Adam(1e-3)
CASES = {
    "torch's betas": (
        lambda: eqopt.Adam(1e-3, betas=(0.9, 0.99)),
        "Adam: no argument `betas`. Write `betas=(b1, b2)` as `b1=..., b2=...`",
    ),
    "weight decay of SGD": (
        lambda: eqopt.SGD(1e-3, weight_decay=0.1),
        "`eqopt.Chain(eqopt.AddDecayedWeights(1e-4), optimizer)`",
    ),
    "a typo": (
        lambda: eqopt.schedules.Linear(init_val=0.1),
        "Linear: no argument `init_val`. Did you mean `init_value`?",
    ),
    "half a step": (
        lambda: eqopt.MultiSteps(ADAM, 2.5),
        "MultiSteps: `every_k_schedule` must be of type `int | ",
        "but is 2.5 of type float",
    ),
    "an argument that is missing": (
        lambda: eqopt.Lookahead(ADAM),
        "Lookahead.__init__() missing 2 required positional arguments: 'sync_period'",
    ),
    "a part of a recipe": (
        lambda: Recipe(0.1),
        "Recipe (Trace): no argument `wrong`. Its arguments are `decay`, ",
    ),
    "Optax in a chain": (
        lambda: eqopt.Chain(optax.clip(1.0)),
        "argument 0 must be an eqopt transformation, but is `GradientTransformation` of",
        "Wrap it: `eqopt.interop.optax.from_optax(tx)`",
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


def test_no_wrapper_takes_a_transformation_of_optax():
    assert wrappers()
    for cls in wrappers():
        names = [name for name in cls.__annotations__ if name != "inner"]
        arguments = dict.fromkeys(names, 1)
        for given in (optax.adam(1e-3), optax.adam):
            with pytest.raises(
                TypeError, match=r"eqopt.interop.optax.from_optax\(tx\)"
            ):
                cls(inner=given, **arguments)


STATE_DTYPES = "mu_dtype", "nu_dtype", "accumulator_dtype", "state_dtype", "param_dtype"


@pytest.mark.parametrize("name", STATE_DTYPES)
def test_dtypes_of_states_are_real(name):
    owners = [c for c in public_classes() if name in getattr(c, "__annotations__", {})]
    owners = [cls for cls in owners if issubclass(cls, AbstractTransformation)]
    assert owners
    wrong = jnp.complex64, jnp.int32, "float8_e4m3fn", "wide"
    for cls, dtype in itertools.product(owners, wrong):
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
    code_dtype: Any = eqx.field(static=True, default=jnp.int8)

    def init(self, params): ...

    def update(self, updates, state, params=None, **extra):
        return updates, state


def test_classes_and_dtypes_that_are_meant():
    assert Coded().layer is Coded().unknown is Coded().static is eqx.nn.Linear


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


class Failing(eqopt.AbstractOptimizer):
    learning_rate: float

    @property
    def chain(self):
        return eqopt.Chain(b"\xff".decode())


def test_errors_of_a_recipe():
    """Errors of eqopt name the class that the user wrote once; others stay the same."""
    with pytest.raises(UnicodeDecodeError, match=r"^'utf-8' codec can't decode byte"):
        Failing(0.1)
    with pytest.raises(ValueError, match=r"^Adam: `b1` must be in"):
        eqopt.Adam(1e-3, b1=2.0)
    with pytest.raises(ValueError, match=r"^Adafactor: `decay_offset` must be an int"):
        eqopt.Adafactor(0.1, decay_offset=-1)


def test_signatures_are_short():
    """Also of fields that are converted: Equinox writes `Any` for them.

    The arrays of a distribution can also be axes, for `jax.vmap`.
    """
    untyped = []
    for cls in public_classes() - {eqopt.monte_carlo.MultiNormalDiag}:
        for x in inspect.signature(cls).parameters.values():
            if x.kind == x.VAR_POSITIONAL:
                continue
            assert not re.search("numpy|typing|Annotated|eqopt", x.annotation), cls
            if x.annotation == "Any":
                untyped.append(f"{cls.__name__}.{x.name}")
    assert not untyped
    assert str(inspect.signature(eqopt.RMSprop)).startswith(
        "(learning_rate: float | Array | Schedule, decay: float | Array | Schedule = 0.9"
    )
    assert "axis: int = 0" in str(inspect.signature(eqopt.QKClip))
    with pytest.raises(TypeError, match="GaLore: `rank` must be a Python integer, but"):
        eqopt.GaLore(1e-3, rank="a")  # type: ignore
    assert eqopt.GaLore(1e-3, rank=np.int64(4)).rank == 4


HALF = eqopt.Adam(0.1, mu_dtype=jnp.bfloat16)
PRINTED = [
    (eqopt.Adam(0.1, b1=0.9), "Adam(learning_rate=0.1)"),
    (pickle.loads(pickle.dumps(eqopt.Chain(HALF))), repr(eqopt.Chain(HALF))),
    (eqopt.Adam(0.1, b1=jnp.asarray(0.9)), "Adam(learning_rate=0.1, b1=weak_f32[])"),
]


@pytest.mark.parametrize(("opt", "text"), PRINTED)
def test_equal_optimizers_print_the_same(opt, text):
    """A default is hidden if its value is equal, but an array is always shown."""
    assert repr(opt) == text


def test_annotations_that_are_strings():
    """As after `from __future__ import annotations`, perhaps with unknown names."""

    class Wrapped(eqopt.AbstractTransformation):
        inner: "eqopt.AbstractTransformation"
        other: "Unknown" = None  # type: ignore  # nothing has this name

        def init(self, params):
            return None

        def update(self, updates, state, params=None, **extra):
            return updates, state

    message = (
        "`inner` must be of type `AbstractTransformation`, but is the class Adam. C"
    )
    with pytest.raises(TypeError, match=message):
        Wrapped(eqopt.Adam, 1)
    message = "Wrapped: `inner` must be of type `AbstractTransformation`, but is 3 of"
    with pytest.raises(TypeError, match=message):
        Wrapped(3, 1)
    assert Wrapped(eqopt.SGD(0.1), 1).other == 1
