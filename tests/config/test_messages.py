"""What plain data cannot be: each message has the path, and the fix."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import eqopt
from eqopt import config
from eqopt.config import _data


ADAMW = {"name": "AdamW", "learning_rate": 1e-3}


def chain(part):
    return {"name": "Chain", "transformations": [{"name": "Identity"}, part]}


def table(row, **keys):
    return {"name": "Partition", "groups": [row], **keys}


AT = "at `.transformations[1]"
WRONG = {
    "another library's name": ({"name": "adamw"}, "Did you mean `AdamW`?"),
    "a bridge": ({"name": "interop.optax.FromOptax"}, "there is no"),
    "without a name": ({"mu_dtype": None, "dtype": "float32"}, "no `name` among"),
    "betas": ({**ADAMW, "betas": [0.9, 0.95]}, "as `b1=..., b2=...`"),
    "misspelled": (
        chain({**ADAMW, "b_1": 0.9}),
        f"{AT}`: AdamW has no argument `b_1`.",
    ),
    "missing": (
        chain({"name": "AdamW"}),
        f"{AT}`: AdamW.__init__() missing 1 required",
    ),
    "out of range": (
        chain({**ADAMW, "b1": 2}),
        f"{AT}`: AdamW: `b1` must be in [0, 1)",
    ),
    "YAML": (
        chain({**ADAMW, "eps": "1e-8"}),
        f"{AT}.eps`: '1e-8' is a text. YAML reads",
    ),
    "mask": ({**ADAMW, "mask": "**/bias"}, "Write {\"paths\": '**/bias'}"),
    "dtype": (
        {**ADAMW, "mu_dtype": {"dtype": "bf16"}},
        "`.mu_dtype`: 'bf16' is no dtype, such as 'bfloat16'",
    ),
    "function": (
        {**ADAMW, "mask": len},
        "at `.mask`: plain data have no values of type",
    ),
    "function of a class": (
        {**ADAMW, "mask": {"name": "tree.norm"}},
        "write {\"function\": 'tree.norm'}",
    ),
    "bound argument": (
        {
            "name": "Project",
            "inner": ADAMW,
            "projection": {"function": "projections.l2_ball", "radius": 1.0},
        },
        "at `.projection`: projections.l2_ball has no argument `radius`",
    ),
    "layer": (
        {**ADAMW, "mask": {"name": "groups.module", "types": ["LayerNorm"]}},
        "there is no 'LayerNorm'. Did you mean `eqx.nn.LayerNorm`?",
    ),
    "layer as a part": ({"name": "eqx.nn.Identity"}, "there is no 'eqx.nn.Identity'."),
    "class as a function": (
        {**ADAMW, "learning_rate": {"function": "schedules.Linear"}},
        "`schedules.Linear` is no function. Write {\"name\": 'schedules.Linear'}",
    ),
    "schedule": ({"name": "schedules.Constant", "value": 1.0}, "is no transformation"),
    "version": (
        {"version": 2, **ADAMW},
        "have version 2, but this eqopt reads version 1",
    ),
    "names": (
        {"name": "NamedChain", "names": ["a", "a"], "transformations": [ADAMW, ADAMW]},
        "each of `transformations` needs its own name in `names`",
    ),
    "factor": (
        table({"paths": "**", "optimizer": ADAMW, "learning_rate_facto": 1}),
        "at `.groups[0]`: the group has no argument `learning_rate_facto`. Did you mean",
    ),
    "factor of a chain": (
        table({"paths": "**", "optimizer": chain(ADAMW), "learning_rate_factor": 1}),
        "at `.groups[0].learning_rate_factor`: 'Chain' object has no attribute",
    ),
    "shared": (
        table({"paths": "**", "optimizer": "adam"}, optimizers={"adamw": ADAMW}),
        "at `.groups[0].optimizer`: `optimizers` has ['adamw'], but not 'adam'",
    ),
    "labels": (
        {"name": "Partition", "groups": [{"paths": "**", "optimizer": ADAMW}] * 2},
        "several groups have the `label` '**'",
    ),
    "a file": ("adamw.yaml", "`data` must be of type `Mapping[str, Any]`"),
}


@pytest.mark.parametrize("name", WRONG)
def test_data_that_do_not_fit(name):
    data, message = WRONG[name]
    with pytest.raises(ValueError) as error:
        config.load(data)
    assert message in str(error.value)
    assert str(error.value).startswith("eqopt.config.load: ")


class Hidden(eqopt.AbstractOptimizer):
    rate: float

    def __init__(self, of):
        self.rate = of

    @property
    def chain(self):
        return eqopt.SGD(self.rate)


KEY = jr.key(0)
MODEL = eqx.nn.Linear(2, 2, key=KEY)
REFUSED = {
    "a lambda": (eqopt.AdamW(1e-3, mask=lambda p: p), "at `.mask`: the function `<lam"),
    "a tree": (eqopt.AdamW(1e-3, mask={"w": True}), "at `.mask`: the class `dict` has"),
    "a key": (eqopt.AddNoise(0.1, 0.5, KEY), "at `.key`: an array key<fry>[]."),
    "a bound position": (
        eqopt.Project(eqopt.SGD(0.1), functools.partial(eqopt.projections.l2_ball, 1)),
        "at `.projection`: a `functools.partial`. Bind its arguments by name.",
    ),
    "an array": (eqopt.ScaleByTree(jnp.ones(2)), "at `.factors`: an array float32[2]."),
    "a class": (eqopt.AdamW, "the class AdamW. Create an instance of it."),
    "a group": (
        eqopt.Partition(
            {"a": eqopt.SGD(lambda count: 0.1)},
            eqopt.groups.label({"a": eqopt.groups.everything}),
        ),
        "at `['a'].learning_rate`: the function",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_optimizers_that_are_no_data(name):
    opt, message = REFUSED[name]
    with pytest.raises(ValueError) as error:
        config.dump(opt)
    assert message in str(error.value)
    assert str(error.value).startswith("eqopt.config.dump: ")


def test_traced_values():
    with pytest.raises(ValueError, match=r"at `\.learning_rate`: a traced value"):
        jax.jit(lambda rate: config.dump(eqopt.SGD(rate)) and rate)(1.0)


def test_registered_names(monkeypatch):
    monkeypatch.setattr(_data, "_REGISTERED", {})

    def run_cell():
        @config.register
        class Mine(eqopt.AbstractOptimizer):
            @property
            def chain(self):
                return eqopt.SGD(0.1)

        return Mine

    run_cell()
    again = run_cell()  # as in a notebook
    assert type(config.load({"name": "Mine"})) is again
    with pytest.raises(ValueError, match="'AdamW' belongs to eqopt"):
        config.register(Hidden, "AdamW")
    with pytest.raises(ValueError, match="'Mine' belongs to other code"):
        config.register(Hidden, "Mine")
    config.register(Hidden)
    with pytest.raises(ValueError, match="the constructor of `Hidden` has no argument"):
        config.dump(Hidden(0.1))
    with pytest.raises(ValueError, match="Did you mean `Mine`"):
        config.load({"name": "Mne"})


def test_messages_are_short():
    opts = [opt for opt, _ in REFUSED.values() if dataclasses.is_dataclass(type(opt))]
    calls = [(config.dump, opt) for opt in opts]
    calls += [(config.load, data) for data, _ in WRONG.values()]
    for call, x in calls:
        with pytest.raises(ValueError) as error:
            call(x)
        assert len(str(error.value)) <= 3 * 88
