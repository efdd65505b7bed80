"""The recipe for Orbax on the page about checkpoints: what it promises holds."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.checkpoint import CheckpointError, check_layout, layout


ocp = pytest.importorskip("orbax.checkpoint")
pytestmark = [
    pytest.mark.slow,
    # Other packages cause these: threads that end late, and deprecated names.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def arrays(tree):
    return eqx.filter(eqopt.tree.unwrap_random_key_data(tree), eqx.is_array)


def save(manager, step, tree):
    tree = arrays(tree)
    items = {"tree": ocp.args.StandardSave(tree)}
    items["layout"] = ocp.args.JsonSave(layout(tree))
    manager.save(step, args=ocp.args.Composite(**items))


def restore(manager, step, like):
    only = ocp.args.Composite(layout=ocp.args.JsonRestore())
    check_layout(manager.restore(step, args=only)["layout"], like)
    only = ocp.args.Composite(tree=ocp.args.StandardRestore(like))
    return manager.restore(step, args=only)["tree"]


def manager_of(path, **options):
    return ocp.CheckpointManager(
        path, options=ocp.CheckpointManagerOptions(**options), item_names=NAMES
    )


NAMES = ("tree", "layout")


def assert_same(left, right):
    leaves = [jax.tree.leaves(jax.device_get(arrays(t))) for t in (left, right)]
    for x, y in zip(*leaves, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


STORED = {
    "8 bits": (eqopt.storage.BlockwiseQuantized(), eqopt.storage.SplitMasterWeights()),
    "4 bits": (eqopt.storage.BlockwiseQuantized(4), eqopt.storage.KahanSummation()),
    "float8": (eqopt.storage.Float8(), eqopt.storage.MasterWeights()),
    "rounded": (eqopt.storage.StochasticRounding(),) * 2,
}


@pytest.mark.parametrize(("of_state", "of_params"), STORED.values(), ids=STORED)
def test_what_is_stored_in_fewer_bytes(tmp_path, of_state, of_params):
    """It is restored bit by bit without its modules; another storage is an error."""
    inner = eqopt.StoreState(eqopt.AdamW(0.1), of_state, eqopt.groups.everything)
    opt = eqopt.StoreParams(inner, of_params)
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
    params = {"w": draw(40, 33), "b": draw(7)}
    step = jax.jit(opt.step)

    def on(tree):
        for i in range(3):
            grads = jax.tree.map(lambda p, i=i: jnp.cos(p + i), tree["params"])
            new, state = step(grads, tree["state"], tree["params"])
            tree = {"params": new, "state": state}
        return tree

    tree = on({"params": params, "state": opt.init(params)})
    with manager_of(tmp_path) as manager:
        save(manager, 0, tree)
        manager.wait_until_finished()
        like = eqx.filter_eval_shape(lambda: arrays(tree))
        restored = restore(manager, 0, like)
        bits = eqopt.storage.BlockwiseQuantized(block_size=64)
        other = eqopt.StoreParams(
            eqopt.StoreState(eqopt.AdamW(0.1), bits, eqopt.groups.everything), of_params
        )
        with pytest.raises(CheckpointError, match="mu"):
            restore(manager, 0, arrays({**tree, "state": other.init(params)}))
    assert_same(restored, tree)
    assert_same(on(eqx.combine(restored, tree)), on(tree))
