"""What plain data hold: numbers, dtypes, functions, selectors, schedules, storages."""

import dataclasses
import functools
import inspect
import json
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt import compression, config, groups, schedules, storage
from eqopt.config import _data

from ..schedules.conftest import CASES


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
    monkeypatch.setattr(_data, "_REGISTERED", {})


def assert_round_trip(opt):
    """The copy is equal, also after strict JSON, and what is written stays the same."""
    data = config.dump(opt)
    copy = config.load(json.loads(json.dumps(data, allow_nan=False)))
    assert eqx.tree_equal(copy, opt, typematch=True)
    assert config.dump(copy) == data
    return data


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (math.inf, {"float": "inf"}),
        (3, 3),
        (jnp.asarray(0.1), {"array": 0.10000000149011612}),  # its type is weak
        (jnp.float32(0.1), {"array": 0.10000000149011612, "dtype": "float32"}),
        (jnp.bfloat16(0.1), {"array": 0.10009765625, "dtype": "bfloat16"}),
        (jnp.int32(3), {"array": 3, "dtype": "int32"}),
        (jnp.float32(math.inf), {"array": {"float": "inf"}, "dtype": "float32"}),
    ],
)
def test_numbers(number, written):
    data = assert_round_trip(eqopt.ClipByGlobalNorm(number))
    assert data["max_norm"] == written
    copy = config.load(data).max_norm
    if isinstance(number, jax.Array):
        assert (copy.dtype, copy.weak_type) == (number.dtype, number.weak_type)


def test_numbers_of_numpy_become_pythons():
    for number in (np.float32(0.5), np.float64(0.5), np.asarray(0.5)):
        data = config.dump(eqopt.ClipByGlobalNorm(number))
        assert type(data["max_norm"]) is float
        assert config.load(data) == eqopt.ClipByGlobalNorm(0.5)
    assert config.load({"name": "Adam", "learning_rate": np.float32(0.5)}).b1 == 0.9


class Anything(eqopt.AbstractOptimizer):
    x: object

    @property
    def chain(self):
        return eqopt.Identity()


def test_nan_and_negative_zero():
    config.register(Anything)
    data = assert_round_trip(Anything(-0.0))
    assert math.copysign(1, config.load(data).x) == -1
    data = config.dump(Anything((math.nan, -math.inf)))
    assert data["x"] == [{"float": "nan"}, {"float": "-inf"}]
    nan, low = config.load(data).x
    assert math.isnan(nan) and low == -math.inf


def test_dtypes():
    for dtype in (jnp.bfloat16, jnp.float16, np.float32, np.dtype("float64")):
        data = assert_round_trip(eqopt.AdamW(1e-3, mu_dtype=dtype))
        assert data["mu_dtype"] == {"dtype": jnp.dtype(dtype).name}
    data = assert_round_trip(eqopt.AdamW(1e-3, mu_dtype="bfloat16"))
    assert data["mu_dtype"] == "bfloat16"


def constructible(room):
    classes = [getattr(room, name) for name in dir(room)]
    return [
        cls
        for cls in classes
        if isinstance(cls, type)
        and dataclasses.is_dataclass(cls)
        and not inspect.isabstract(cls)
        and not cls.__name__.endswith("State")
    ]


FIRST = {type(case.ours): case.ours for case in reversed(CASES.values())}


@pytest.mark.parametrize("cls", FIRST, ids=lambda cls: cls.__name__)
def test_schedules(cls):
    assert_round_trip(eqopt.AdamW(2.0 * FIRST[cls], b2=FIRST[cls]))


def test_all_schedules_are_tested():
    assert {*constructible(schedules)} - {*FIRST} == {schedules.ReduceOnPlateau}
    plateau = schedules.ReduceOnPlateau(0.1, factor=0.5)
    assert_round_trip(eqopt.Scheduled(eqopt.Adam(plateau)))


def test_storages_and_compressors():
    for cls in constructible(storage):
        is_of_state = issubclass(cls, storage.AbstractStateStorage)
        store = eqopt.StoreState if is_of_state else eqopt.StoreParams
        assert_round_trip(store(eqopt.Adam(1e-3), cls()))
    for cls in {*constructible(compression)} - {compression.Workers}:
        assert_round_trip(eqopt.CompressedMean(eqopt.SGD(0.1), "data", cls()))


def is_matrix(params):
    return jax.tree.map(lambda p: p.ndim >= 2, params)


def is_wide(x):
    return x.shape[-1] > 8


def first(model):
    return model.layers[0]


GLOB = groups.glob("**/bias")
ANY = groups.path("bias$") | GLOB | groups.module(eqx.nn.LayerNorm)


@pytest.mark.parametrize(
    ("mask", "written"),
    [
        (GLOB, {"paths": "**/bias"}),
        (~GLOB, {"not": {"paths": "**/bias"}}),
        (
            groups.glob("**/bias", required=False),
            {"name": "groups.glob", "pattern": "**/bias", "required": False},
        ),
        (groups.everything, {"name": "groups.everything"}),
        (
            ANY,
            {
                "any": [
                    {"name": "groups.path", "pattern": "bias$", "required": True},
                    {"paths": "**/bias"},
                    {
                        "name": "groups.module",
                        "types": ["eqx.nn.LayerNorm"],
                        "required": True,
                    },
                ]
            },
        ),
        (is_matrix, {"function": "is_matrix"}),
        (True, True),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_masks(mask, written):
    for fn in (is_matrix, is_wide, first):
        config.register(fn)
    assert assert_round_trip(eqopt.AdamW(1e-3, mask=mask))["mask"] == written


def test_several_patterns():
    data = {"name": "AdamW", "learning_rate": 1e-3, "mask": {"paths": ["a/*", "b/**"]}}
    both = groups.glob("a/*") | groups.glob("b/**")
    assert config.load(data) == eqopt.AdamW(1e-3, mask=both)
    data["mask"]["required"] = False
    both = groups.glob("a/*", required=False) | groups.glob("b/**", required=False)
    assert config.load(data) == eqopt.AdamW(1e-3, mask=both)


def test_rules_for_matrices():
    config.register(first)
    rules = (
        groups.matrices(groups.glob("**/qkv"), inputs=-4, outputs=(-2, -1))
        | groups.matrices(GLOB, "embed", ("heads", "size"), 1, (4, 2, 2))
        | groups.stacked(first, axes=2)
        | groups.no_matrices(groups.path("embedding"))
    )
    data = assert_round_trip(eqopt.Muon(0.02, weight_dimension_numbers=rules))
    names = [rule["name"] for rule in data["weight_dimension_numbers"]["any"]]
    assert names == [
        *["groups.matrices"] * 2,
        *("groups.stacked", "groups.no_matrices"),
    ]
    numbers = eqopt.MatrixDimensionNumbers(0, (1, 2), output_blocks=(2, 1))
    assert_round_trip(eqopt.Muon(0.02, weight_dimension_numbers=numbers))
    assert_round_trip(eqopt.AdamMini(1e-3, block_axes=groups.BlockAxes((-2, -1), 8)))
    factors = groups.layerwise_decay(0.8, groups.glob("a/**"), groups.stacked(first))
    assert_round_trip(eqopt.ScaleByTree(factors))


def test_functions():
    ball = functools.partial(eqopt.projections.l2_ball, scale=jnp.float32(2.0))
    data = assert_round_trip(eqopt.Project(eqopt.SGD(0.1), ball))
    assert data["projection"] == {
        "function": "projections.l2_ball",
        "scale": {"array": 2.0, "dtype": "float32"},
    }
    # A private function, which is a default.
    data = assert_round_trip(eqopt.ADOPT(1e-3))
    assert data["clip_value_fn"] == {"function": "fourth_root"}
    assert_round_trip(eqopt.Monitor({"norm": eqopt.tree.norm}))


def test_own_classes():
    @config.register
    class Halved(schedules.AbstractSchedule):
        value: float

        def __call__(self, count):
            return jnp.asarray(self.value) * 0.5**count

    @functools.partial(config.register, name="mine.Wrapped")
    class Wrapped(eqopt.AbstractOptimizer):
        inner: eqopt.AbstractTransformation

        @property
        def chain(self):
            return self.inner

    data = assert_round_trip(Wrapped(eqopt.Adam(Halved(0.1))))
    assert data["name"] == "mine.Wrapped"
    assert data["inner"]["learning_rate"] == {"name": "Halved", "value": 0.1}


def test_order_and_defaults():
    data = {"b1": 0.8, "learning_rate": 0.1, "name": "Adam"}
    assert config.load(data) == eqopt.Adam(0.1, b1=0.8)
    chain = {"name": "Chain", "transformations": [config.dump(eqopt.Adam(0.1))]}
    assert config.load(chain) == eqopt.Chain(eqopt.Adam(0.1))
    parts = [{"name": "SGD", "learning_rate": 0.1}, {"name": "Identity"}]
    named = {"name": "NamedChain", "names": ["b", "a"], "transformations": parts}
    assert config.load(named) == eqopt.NamedChain(b=eqopt.SGD(0.1), a=eqopt.Identity())
