"""Fields that are never negative are declared so: storages then need no sign bit."""

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

import eqopt
from eqopt.tree._slots import found_in

from ..laws.registry import law
from ..laws.subjects import grads_of, params_of, step


PARAMS = params_of()
# Fields that are positive here, and not declared.
EXCEPT = {
    "Sophia": "an estimate of a curvature, which may be negative: not that of this loss",
    "Sophia(win rate)": "the same",
    "from_optax(adam)": "a state of Optax, which declares nothing",
    "from_optax(inject_hyperparams)": "the same",
}


def fields(opt):
    """For each field: its values in a few steps, and whether it is declared."""
    params, state = PARAMS, opt.init(PARAMS)
    numbers, declared = {}, {}
    for i in range(4):
        # Each is larger than those before it together: what has a sign changes it.
        grads = jax.tree.map(lambda g, by=(-2) ** i: by * g, grads_of(PARAMS, 7))
        params, state = step(opt, grads, state, params)
        leaves, _ = jtu.tree_flatten_with_path(state)
        slots = found_in(PARAMS, state)
        for (path, x), slot in zip(leaves, slots, strict=True):
            if slot.place is None or not jnp.issubdtype(x.dtype, jnp.floating):
                continue
            names = [key for key in path if isinstance(key, jtu.GetAttrKey)]
            last = max(i for i, key in enumerate(path) if key in names)
            field = jtu.keystr(path[: last + 1])
            numbers.setdefault(field, []).append(np.asarray(x).ravel())
            declared.setdefault(field, set()).add(slot.kind == "nonnegative")
    for field, found in numbers.items():
        [is_so] = declared[field]
        yield field, np.concatenate(found), is_so


@law({"ScaleByAdam", "ScaleByRMS", "Partition(SGD)", "ScaleByLion"})
def test_declared(row):
    for field, numbers, is_so in fields(row()):
        if not (numbers != 0).any():
            continue
        if row.name in EXCEPT and (numbers >= 0).all():
            assert not is_so
            continue
        assert is_so == (numbers >= 0).all(), field


def test_which_codes_they_get():
    opt = eqopt.StoreState(
        eqopt.Chain(eqopt.ScaleByAdam(), eqopt.Trace(0.9)),
        eqopt.storage.BlockwiseQuantized(),
        eqopt.groups.everything,
    )
    state = opt.init({"a": jnp.ones(3)})
    signed = jax.tree.map(
        lambda x: x.map.is_signed,
        [eqopt.tree.get(state, name) for name in ("mu", "nu", "trace")],
        is_leaf=lambda x: hasattr(x, "map"),
    )
    assert signed == [{"a": True}, {"a": False}, {"a": True}]
