"""Optimizers that look at parameters as matrices."""

import jax
import jax.numpy as jnp
import optax

import eqopt

from ..case import COSINE, LINEAR, Case, is_matrix


def by_axes(numbers):
    """The last two axes of two or more, in either library."""
    at = lambda p: numbers(p.ndim - 2, p.ndim - 1) if p.ndim >= 2 else None
    return lambda params: jax.tree.map(at, params)


def without_none(opt):
    """Optax's GaLore fails if there is a `None` among the parameters."""
    leaves = jax.tree.leaves

    def update(updates, state, params=None):
        new, state = opt.update(leaves(updates), state, leaves(params))
        return jax.tree.unflatten(jax.tree.structure(updates), new), state

    return optax.GradientTransformation(lambda p: opt.init(leaves(p)), update)


# Of other matrices the two project different sides; see the departures.
SQUARE = (4, 4), (4,), (), (2, 3, 2)

MATRICES = {"weight_dimension_numbers": by_axes(eqopt.MatrixDimensionNumbers)}
THEIR_MATRICES = {
    "muon_weight_dimension_numbers": by_axes(optax.contrib.MuonDimensionNumbers)
}
ROWS = (4.0, -6.9, 2.9), (3.7, -5.6, 2.3), (2.9, -3.1, 1.2)
# In these matrices small singular values are enlarged up to 500 times, and with them the
# rounding errors of the momentum.
ENLARGED = {"rtol": 5e-5}

CASES = {
    "muon": Case(eqopt.Muon(0.1), optax.contrib.muon(0.1), **ENLARGED),
    "muon, stacks": Case(
        eqopt.Muon(COSINE[0], **MATRICES),
        optax.contrib.muon(COSINE[1], **THEIR_MATRICES),
        **ENLARGED,
    ),
    "muon, other": Case(
        eqopt.Muon(
            LINEAR[0],
            ROWS,
            beta=0.8,
            eps=1e-3,
            weight_decay=0.3,
            mask=is_matrix,
            nesterov=False,
            consistent_rms=0.2,
            **MATRICES,
        ),
        optax.contrib.muon(
            LINEAR[1],
            ROWS,
            beta=0.8,
            eps=1e-3,
            weight_decay=0.3,
            weight_decay_mask=is_matrix,
            nesterov=False,
            consistent_rms=0.2,
            **THEIR_MATRICES,
        ),
        **ENLARGED,
    ),
    "muon, fallback": Case(  # of Optax, always an AdamW, with the `nesterov` of Muon
        eqopt.Muon(
            0.1,
            fallback=eqopt.AdamW(LINEAR[0], 0.5, 0.9, weight_decay=0.2, nesterov=True),
        ),
        optax.contrib.muon(
            0.1,
            adam_learning_rate=LINEAR[1],
            adam_b1=0.5,
            adam_b2=0.9,
            adam_weight_decay=0.2,
        ),
        **ENLARGED,
    ),
    "muon, float16 mu": Case(
        eqopt.Muon(0.1, mu_dtype=jnp.float16),
        optax.contrib.muon(0.1, mu_dtype=jnp.float16),
        rtol=1e-2,  # Optax multiplies the float16 moment by beta in float16
    ),
    "muon, adaptive": Case(
        eqopt.Muon(0.1, ns_steps=3, adaptive=True),
        optax.contrib.muon(0.1, ns_steps=3, adaptive=True),
        **ENLARGED,
    ),
    **{
        f"muon, {name}": Case(
            eqopt.Muon(0.1, "dion", preconditioning=name, **MATRICES),
            optax.contrib.muon(0.1, "dion", preconditioning=name, **THEIR_MATRICES),
            **ENLARGED,
        )
        for name in ("aol", "schatten")
    },
    "galore": Case(
        eqopt.GaLore(0.1), without_none(optax.contrib.galore(0.1)), shapes=SQUARE
    ),
    "galore, rank": Case(
        eqopt.GaLore(
            LINEAR[0], 2, 5, 0.3, eqopt.Trace(0.5), weight_decay=0.2, mask=is_matrix
        ),
        without_none(
            optax.contrib.galore(
                LINEAR[1], 2, 5, 0.3, optax.trace(0.5), weight_decay=0.2, mask=is_matrix
            )
        ),
        shapes=SQUARE,
    ),
    "scale_by_galore": Case(
        eqopt.ScaleByGaLore(1, 2, 0.3),
        without_none(optax.contrib.scale_by_galore(1, 2, 0.3)),
        shapes=SQUARE,
    ),
}
