"""Every transformation as plain data, and back."""

import dataclasses
import functools
import json

import equinox as eqx
import pytest

from eqopt import config
from eqopt.config import _data

from .registry import CLASSES, EVERY, TELLING, law


# Rows with something that plain data cannot hold, and where it is.
REFUSED = {
    **{
        name: "FromOptax"
        for name in EVERY
        if name.startswith("from_optax") or name == "Chain(from_optax)"
    },
    **dict.fromkeys(("ZeRO1(SGD)", "ZeRO1(nested)", "DistributeMatrices"), "`.mesh`"),
}


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
    monkeypatch.setattr(_data, "_REGISTERED", {})


def register_own(x):
    """Names the functions and classes of the tests that an optimizer consists of."""
    if isinstance(x, tuple):
        for item in x:
            register_own(item)
        return
    if dataclasses.is_dataclass(x):
        for field in dataclasses.fields(x):
            register_own(getattr(x, field.name))
        x = type(x)
    if getattr(x, "__module__", "").startswith("tests.") and hasattr(x, "__qualname__"):
        config.register(x, f"{x.__module__}.{x.__qualname__}")


def made(row):
    for opt in (row(), row(**row.data)):
        register_own(opt)
        yield opt


@law(names=EVERY)
def test_plain_data_make_an_equal_optimizer(row):
    if row.name in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[row.name]):
            config.dump(next(made(row)))
        return
    for opt in made(row):
        data = config.dump(opt)
        fields = {field.name for field in dataclasses.fields(opt)}
        assert data.keys() == {"version", "name", *fields}
        # Strict JSON, and keys in another order.
        text = json.dumps(data, allow_nan=False, sort_keys=True)
        copy = config.load(json.loads(text))
        assert eqx.tree_equal(copy, opt, typematch=True) is True
        assert repr(copy) == repr(opt)


@law(TELLING, CLASSES | TELLING)
def test_each_misspelled_key_is_an_error(row):
    if row.name in REFUSED:
        return
    data = config.dump(next(made(row)))
    for path, key in keys_in(data):
        copy = json.loads(json.dumps(data))
        place = functools.reduce(lambda tree, step: tree[step], path, copy)
        place[f"{key}_"] = place.pop(key)
        with pytest.raises(ValueError, match=r"^eqopt.config.load: ") as error:
            config.load(copy)
        assert key in str(error.value) and str(error.value).count("\n") <= 2


def keys_in(data, path=()):
    """The path of each dictionary in plain data with each of its keys."""
    if isinstance(data, dict):
        for key, x in data.items():
            yield path, key
            yield from keys_in(x, (*path, key))
    if isinstance(data, list):
        for i, x in enumerate(data):
            yield from keys_in(x, (*path, i))
