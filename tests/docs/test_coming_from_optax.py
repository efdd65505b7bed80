"""Rows of "Coming from Optax" that change arguments give the same numbers.

A clause that begins with "also" says what eqopt adds, and needs no case. Nor does an
argument with another name: `test_pages.py` compares the signatures.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import eqopt

from ..interpreter import interpreted
from ..parity import case
from .pages import DOCS, RENAMED, prose


def rows():
    """What the last columns of the tables say, without what eqopt adds."""
    row = r"^\| `(optax[^`]*)`.*? \| \[`eqopt[^|]* \| (.*) \|$"
    for name, cell in re.findall(row, prose(DOCS / "coming_from_optax.md"), re.M):
        said = re.sub(r"\balso [^;]*(; )?", "", cell)
        said = re.sub(rf"(({RENAMED})[,;]? ?)+(has a default)?", "", said)
        if said and not name.startswith("optax.monte_carlo."):  # gone since 0.2.7
            yield name, said


ROWS = dict(rows())


def tree(seed):
    shapes = {"wide": (3, 4), "square": (4, 4), "bias": (4,), "scale": ()}
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    pairs = zip(keys, shapes.items(), strict=True)
    return {name: jax.random.normal(key, shape) for key, (name, shape) in pairs}


# What the expressions refer to.
params, grads = tree(0), tree(1)
square = {"square": params["square"]}
batch = jnp.stack([params["bias"], grads["bias"]])
loss = case.curved(params)["value_fn"]  # its Hessian is diagonal
opt = eqopt.Adam(0.1)
learning_rate, rate, a, b, max_squared_norm = 0.1, 0.01, 0.7, 0.3, 4.0
adam_learning_rate, adam_weight_decay = 0.2, 0.3
adam_b1, adam_b2, adam_eps_root, eps = 0.5, 0.9, 1e-2, 1e-3
mu_dtype = jnp.float16


def schedule(count):
    return 0.9 / (1 + count)


def is_square(tree):
    return {name: name == "square" for name in tree}


def numbers(cls):
    return {name: cls() if p.ndim == 2 else None for name, p in params.items()}


def steps(opt, params=params, state=None, **extra):
    """The updates of three steps, in either library."""
    if isinstance(opt, optax.GradientTransformation):
        opt = optax.with_extra_args_support(opt)

    @interpreted
    def step(params, state):
        value, grads = jax.value_and_grad(loss)(getattr(params, "fast", params))
        given = {"value": value, "grad": grads, **extra} if extra else {}
        updates, state = opt.update(grads, state, params, **given)
        return updates, optax.apply_updates(params, updates), state

    state, found = opt.init(params) if state is None else state, []
    for _ in range(3):
        updates, params, state = step(params, state)
        found.append(updates)
    return found


def ravel(found):
    return ravel_pytree(found)[0]


class Negative(eqopt.AbstractTransformation):
    def init(self, params):
        return None

    def update(self, updates, state, params=None, **extra):
        return jax.tree.map(jnp.negative, updates), state


class First(eqopt.aggregating.AbstractAggregator):
    def init(self, params):
        return None

    def aggregate(self, updates, state, params=None, **extra):
        return jax.tree.map(lambda g: g[0], updates), {}, state


# By the first name in a row: two expressions that give the same numbers. They contain all
# code of the row's last column.
CASES = {
    "optax.adadelta": (
        """steps(optax.chain(
            optax.adadelta(None, 0.8, weight_decay=0.1, weight_decay_mask=is_matrix),
            optax.scale(-1.0)))""",
        """steps(eqopt.Adadelta(
            learning_rate=1.0, rho=0.8, weight_decay=0.1, mask=is_matrix))""",
    ),
    # At b2 = 0.5, Optax's 1 - b2 is right. See `parity/departures/test_adam.py`.
    "optax.adan": (
        "steps(optax.adan(0.1, b2=0.5, eps_root=0.0))",
        "steps(eqopt.Adan(0.1, b2=0.5))",
    ),
    "optax.contrib.dadapt_adamw": (
        "steps(optax.contrib.dadapt_adamw(betas=(0.8, 0.9), estim_lr0=0.1))",
        "steps(eqopt.DAdaptAdamW(b1=0.8, b2=0.9, estim_lr0=0.1))",
    ),
    "optax.lars": (
        "steps(optax.lars(0.1, 0.2, weight_decay_mask=True, trust_ratio_mask=is_matrix))",
        "steps(eqopt.LARS(0.1, 0.2, mask=None, trust_ratio_mask=is_matrix))",
    ),
    "optax.contrib.muon": (
        """[steps(optax.contrib.muon(
            0.1, beta=0.5, eps=eps, weight_decay=0.2, weight_decay_mask=is_square,
            mu_dtype=mu_dtype, nesterov=nesterov,
            adam_learning_rate=adam_learning_rate, adam_b1=adam_b1, adam_b2=adam_b2,
            adam_eps_root=adam_eps_root, adam_weight_decay=adam_weight_decay,
            muon_weight_dimension_numbers=numbers(optax.contrib.MuonDimensionNumbers),
        )) for nesterov in (True, False)]""",
        """[steps(eqopt.Muon(
            0.1, beta=0.5, eps=eps, weight_decay=0.2, mask=is_square,
            mu_dtype=mu_dtype, nesterov=nesterov,
            fallback=eqopt.AdamW(adam_learning_rate, b1=adam_b1, b2=adam_b2, eps=eps,
                eps_root=adam_eps_root, weight_decay=adam_weight_decay,
                mu_dtype=mu_dtype, nesterov=nesterov),
            weight_dimension_numbers=numbers(eqopt.MatrixDimensionNumbers),
        )) for nesterov in (True, False)]""",
    ),
    "optax.noisy_sgd": (
        "steps(optax.noisy_sgd(0.1, 0.0, 0.5, seed=1))",
        "steps(eqopt.NoisySGD(0.1, 0.0, 0.5, key=1))",
    ),
    "optax.optimistic_adam_v2": (
        "steps(optax.optimistic_adam_v2(learning_rate, alpha=a, beta=b))",
        "steps(eqopt.OptimisticAdam(a * learning_rate, optimism=b * learning_rate))",
    ),
    "optax.contrib.prodigy": (
        "steps(optax.contrib.prodigy(0.5, betas=(0.8, 0.9), beta3=0.7, estim_lr0=0.1))",
        "steps(eqopt.Prodigy(0.5, b1=0.8, b2=0.9, b3=0.7, estim_lr0=0.1))",
    ),
    "optax.radam": (
        "steps(optax.radam(0.1, b2=0.5, threshold=4.0))",
        "steps(eqopt.RAdam(0.1, b2=0.5, threshold=4.0))",
    ),
    "optax.contrib.sophia": (
        """steps(optax.contrib.sophia(0.1, weight_decay=0.1, weight_decay_mask=is_matrix,
            verbose=False, print_win_rate_every_n_steps=0), obj_fn=loss)""",
        """steps(eqopt.Sophia(0.1, weight_decay=0.1, mask=is_matrix,
            track_win_rate=True), value_fn=loss)""",
    ),
    "optax.add_noise": (
        "steps(optax.add_noise(0.0, 0.5, seed=1))",
        "steps(eqopt.AddNoise(0.0, 0.5, key=1))",
    ),
    "optax.contrib.differentially_private_aggregate": (
        """steps(batched(
            optax.contrib.differentially_private_aggregate(0.7, 0.0, seed=1)))""",
        "steps(Batched(eqopt.DifferentiallyPrivateAggregate(0.7, 0.0, key=1)))",
    ),
    "optax.contrib.hutchinson_estimator_diag_hessian": (
        """steps(optax.contrib.hutchinson_estimator_diag_hessian(
            random_seed=jax.random.key(1)), obj_fn=loss)""",
        "steps(eqopt.HutchinsonDiagHessian(key=1), value_fn=loss)",
    ),
    "optax.scale_by_backtracking_linesearch": (
        """steps(optax.chain(optax.sgd(0.5), optax.scale_by_backtracking_linesearch(9)),
            value_fn=lambda p, factor: factor * loss(p), factor=1.0)""",
        """steps(eqopt.Chain(eqopt.SGD(0.5), eqopt.ScaleByBacktrackingLinesearch(9)),
            value_fn=lambda p: 1.0 * loss(p))""",
    ),
    "optax.scale_by_learning_rate": (
        "steps(optax.scale_by_learning_rate(learning_rate=0.3))",
        "steps(eqopt.ScaleByLearningRate(learning_rate=0.3))",
    ),
    "optax.scale_by_radam": (
        "steps(optax.scale_by_radam(b2=0.5, threshold=4.0))",
        "steps(eqopt.ScaleByRAdam(b2=0.5, threshold=4.0))",
    ),
    "optax.scale_by_zoom_linesearch": (
        """steps(optax.chain(optax.sgd(0.5), optax.scale_by_zoom_linesearch(9)),
            value_fn=lambda p, factor: factor * loss(p), factor=1.0)""",
        """steps(eqopt.Chain(eqopt.SGD(0.5), eqopt.ScaleByZoomLinesearch(9)),
            value_fn=lambda p: 1.0 * loss(p))""",
    ),
    "optax.named_chain": (
        'steps(optax.named_chain(("clip", optax.clip(0.5)), ("sgd", optax.sgd(0.1))))',
        "steps(eqopt.NamedChain(clip=eqopt.Clip(0.5), sgd=eqopt.SGD(0.1)))",
    ),
    "optax.masked": (
        """steps(optax.masked(
            optax.adam(0.1), is_matrix, mask_compatible_extra_args=False))""",
        "steps(eqopt.Masked(eqopt.Adam(0.1), is_matrix))",
    ),
    "optax.partition": (
        """steps(optax.partition(
            transforms={True: optax.adam(0.1), False: optax.sgd(0.2)},
            param_labels=is_matrix, mask_compatible_extra_args=False))""",
        """steps(eqopt.Partition(
            transformations={True: eqopt.Adam(0.1), False: eqopt.SGD(0.2)},
            labels=is_matrix))""",
    ),
    "optax.selective_transform": (
        """steps(optax.selective_transform(
            optimizer=optax.adam(0.1), freeze_mask=is_matrix(params)))""",
        "steps(eqopt.SelectiveTransform(inner=eqopt.Adam(0.1), freeze_mask=is_matrix))",
    ),
    "optax.inject_hyperparams": (
        "steps(optax.inject_hyperparams(optax.adam)(1e-3, b1=schedule))",
        "steps(eqopt.Scheduled(eqopt.Adam(1e-3, b1=schedule)))",
    ),
    "optax.incremental_update": (
        "optax.incremental_update(optax.apply_updates(params, grads), params, 0.3)",
        """(ema := eqopt.ParamEMA(eqopt.Identity(), 0.7, debias=False)).eval_params(
            ema.update(grads, ema.init(params), params)[1], params)""",
    ),
    "optax.GradientTransformation": (
        """steps(optax.GradientTransformation(lambda p: None,
            lambda u, state, p=None: (jax.tree.map(jnp.negative, u), state)))""",
        "steps(Negative())",
    ),
    "optax.per_example_global_norm_clip": (
        "optax.per_example_global_norm_clip([batch], 0.7)",
        "eqopt.per_example_global_norm_clip([batch], 0.7)",
    ),
    "optax.per_example_layer_norm_clip": (
        "optax.per_example_layer_norm_clip([batch], 0.7)",
        "eqopt.per_example_layer_norm_clip([batch], 0.7)",
    ),
    "optax.skip_not_finite": (
        "optax.skip_not_finite(grads, 0, params)",
        "eqopt.SkipNotFinite()(grads, 0, params)",
    ),
    "optax.skip_large_updates": (
        "optax.skip_large_updates(grads, 0, params, max_squared_norm)",
        "eqopt.SkipLargeUpdates(max_squared_norm)(grads, 0, params)",
    ),
    "optax.experimental.aggregating.Aggregator": (
        """steps(batched(optax.experimental.aggregating.Aggregator(lambda p: (),
            lambda u, state, p=None: (jax.tree.map(lambda g: g[0], u), state))))""",
        "steps(Batched(First()))",
    ),
    "optax.experimental.aggregating.process": (
        """steps(batched(optax.experimental.aggregating.process(
            optax.clip(0.7), optax.experimental.aggregating.average_per_element_updates(),
            optax.sgd(0.1), aggregator_has_aux=False)))""",
        """steps(Batched(eqopt.aggregating.Process(
            eqopt.Clip(0.7), eqopt.aggregating.AveragePerElementUpdates(),
            eqopt.SGD(0.1))))""",
    ),
    "optax.tree.map_params": (
        """optax.tree.map_params(tx := optax.masked(optax.trace(0.9), is_matrix),
            lambda x: 1 if isinstance(x, jax.Array) else x, tx.init(params),
            is_leaf=lambda x: isinstance(x, optax.MaskedNode))""",
        """eqopt.tree.map_params(tx := eqopt.Masked(eqopt.Trace(0.9), is_matrix),
            lambda x: 1, tx.init(params))""",
    ),
    "optax.tree.set": (
        """steps(tx := optax.inject_hyperparams(optax.adam)(0.1),
            state=optax.tree.set(tx.init(params), learning_rate=jnp.asarray(rate)))""",
        "steps(eqopt.tree.set(opt, learning_rate=rate))",
    ),
    "optax.tree.sum": (
        "optax.tree.sum(params, associative_reduction=True)",
        "eqopt.tree.sum(params)",
    ),
    "optax.second_order.hvp": (
        """optax.second_order.hvp(lambda p, inputs, targets: targets * loss(p),
            v=ravel(grads), params=params, inputs=None, targets=2.0)""",
        """eqopt.second_order.hvp(lambda p, *args: args[1] * loss(p),
            grads, params, None, 2.0)""",
    ),
    "optax.second_order.hessian_diag": (
        """optax.second_order.hessian_diag(lambda p, inputs, targets: targets * loss(p),
            params, None, 2.0)""",
        """eqopt.second_order.hessian_diag(lambda p, *args: args[0] * loss(p),
            params, 2.0)""",
    ),
    "optax.second_order.fisher_diag": (
        """optax.second_order.fisher_diag(lambda p, inputs, targets: targets * loss(p),
            params, None, 2.0)""",
        """eqopt.second_order.fisher_diag(lambda p, *args: args[0] * loss(p),
            params, 2.0)""",
    ),
}


def words(code):
    """The same for the same code, wherever its lines end."""
    return " ".join(["", *re.findall(r"\w+|\S", code), ""])


def test_each_row_has_a_case():
    assert CASES.keys() == ROWS.keys()
    for name, said in ROWS.items():
        for code in [name, *re.findall("`(.*?)`", said)]:
            assert words(code) in words("".join(CASES[name])), (name, code)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("name", CASES)
def test_both_sides_are_equal(name):
    names = {**vars(case), **globals()}
    theirs, ours = (ravel(eval(code, names)) for code in CASES[name])
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)
