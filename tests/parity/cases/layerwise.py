"""Optimizers that look at each layer as a whole."""

import jax.numpy as jnp
import optax

import eqopt

from ..case import COSINE, LINEAR, Case, TorchCase, is_matrix


STACKED = ((3, 4), (4,), (), (2, 3, 2), (5, 2, 6))


def relative(learning_rate):
    """The learning rate of the paper and of torch."""
    return lambda count: jnp.minimum(
        learning_rate, (1.0 + jnp.asarray(count, jnp.float32)) ** -0.5
    )


def downhill(ours, theirs, **arguments):
    """With a small step: uphill, steps in proportion to parameters grow beyond bounds."""
    return Case(
        eqopt.Chain(ours, eqopt.Scale(-0.01)),
        optax.chain(theirs, optax.scale(-0.01)),
        **arguments,
    )


CASES = {
    "trust ratio": downhill(eqopt.ScaleByTrustRatio(), optax.scale_by_trust_ratio()),
    "trust ratio, other": downhill(
        eqopt.ScaleByTrustRatio(2.5, 0.3, 0.1),
        optax.scale_by_trust_ratio(2.5, 0.3, 0.1),
    ),
    "param block norm": downhill(
        eqopt.ScaleByParamBlockNorm(), optax.scale_by_param_block_norm()
    ),
    "param block norm, bounded": downhill(
        eqopt.ScaleByParamBlockNorm(2.0), optax.scale_by_param_block_norm(2.0)
    ),
    "param block rms": downhill(
        eqopt.ScaleByParamBlockRMS(), optax.scale_by_param_block_rms()
    ),
    "param block rms, bounded": downhill(
        eqopt.ScaleByParamBlockRMS(1.0), optax.scale_by_param_block_rms(1.0)
    ),
    "block rms": Case(eqopt.ClipByBlockRMS(0.7), optax.clip_by_block_rms(0.7)),
    "block rms, not clipping": Case(
        eqopt.ClipByBlockRMS(10.0), optax.clip_by_block_rms(10.0)
    ),
    "lamb": Case(eqopt.LAMB(0.1), optax.lamb(0.1)),
    "lamb, other": Case(
        eqopt.LAMB(COSINE[0], 0.5, 0.9, 1e-3, 1e-4, 0.3, is_matrix),
        optax.lamb(COSINE[1], 0.5, 0.9, 1e-3, 1e-4, 0.3, is_matrix),
    ),
    "lamb, decay": Case(
        eqopt.LAMB(0.1, weight_decay=LINEAR[0]), optax.lamb(0.1, weight_decay=LINEAR[1])
    ),
    "lars": Case(eqopt.LARS(0.1), optax.lars(0.1)),
    "lars, other": Case(
        eqopt.LARS(LINEAR[0], 0.3, is_matrix, 0.2, 0.1, is_matrix, 0.5, True),
        optax.lars(LINEAR[1], 0.3, is_matrix, 0.2, 0.1, is_matrix, 0.5, True),
    ),
    "lars, decay": Case(
        eqopt.LARS(0.1, LINEAR[0], trust_coefficient=0.1),
        optax.lars(0.1, LINEAR[1], trust_coefficient=0.1),
    ),
    "fromage": Case(eqopt.Fromage(0.1), optax.fromage(0.1)),
    "fromage, other": Case(
        eqopt.Fromage(COSINE[0], 2.0), optax.fromage(COSINE[1], 2.0)
    ),
    "fromage, large": Case(eqopt.Fromage(2.0), optax.fromage(2.0)),
    "novograd": Case(eqopt.NovoGrad(0.1), optax.novograd(0.1)),
    "novograd, other": Case(
        eqopt.NovoGrad(LINEAR[0], 0.5, 0.8, 1e-2, 1e-3, 0.3),
        optax.novograd(LINEAR[1], 0.5, 0.8, 1e-2, 1e-3, 0.3),
    ),
    "novograd, alone": downhill(
        eqopt.ScaleByNovoGrad(0.8, 0.9, weight_decay=0.1),
        optax.scale_by_novograd(0.8, 0.9, weight_decay=0.1),
    ),
    "factored rms, small": Case(
        eqopt.ScaleByFactoredRMS(min_dim_size_to_factor=3),
        optax.scale_by_factored_rms(min_dim_size_to_factor=3),
        shapes=STACKED,
    ),
    "factored rms, other": Case(
        eqopt.ScaleByFactoredRMS(True, 0.5, 0, 2, 1e-2, lambda t, c: c * t / (t + 1)),
        optax.scale_by_factored_rms(
            True, 0.5, 0, 2, 1e-2, lambda t, c: c * t / (t + 1)
        ),
        shapes=STACKED,
    ),
    "factored rms, not factored": Case(
        eqopt.ScaleByFactoredRMS(False), optax.scale_by_factored_rms(False)
    ),
    "adafactor": Case(eqopt.Adafactor(0.1), optax.adafactor(0.1)),
    "adafactor, factored": Case(
        eqopt.Adafactor(LINEAR[0], 2), optax.adafactor(LINEAR[1], 2), shapes=STACKED
    ),
    "adafactor, without learning rate": Case(
        eqopt.Adafactor(min_dim_size_to_factor=2, clipping_threshold=0.1),
        optax.adafactor(min_dim_size_to_factor=2, clipping_threshold=0.1),
    ),
    "adafactor, momentum": Case(
        eqopt.Adafactor(0.1, 2, 0.5, momentum=0.8, weight_decay=0.1, eps=1e-3),
        optax.adafactor(0.1, 2, 0.5, momentum=0.8, weight_decay_rate=0.1, eps=1e-3),
    ),
    "adafactor, masked": Case(
        eqopt.Adafactor(
            COSINE[0],
            multiply_by_parameter_scale=False,
            clipping_threshold=None,
            factored=False,
            weight_decay=LINEAR[0],
            mask=is_matrix,
        ),
        optax.adafactor(
            COSINE[1],
            multiply_by_parameter_scale=False,
            clipping_threshold=None,
            factored=False,
            weight_decay_rate=LINEAR[1],
            weight_decay_mask=is_matrix,
        ),
    ),
}

TORCH = {
    "adafactor": TorchCase(
        eqopt.Adafactor(relative(0.5), 1), "Adafactor", {"lr": 0.5, "weight_decay": 0.0}
    ),
    "adafactor, other": TorchCase(
        eqopt.Adafactor(
            relative(0.2), 1, 0.5, clipping_threshold=2.0, weight_decay=0.2 * 0.3
        ),
        "Adafactor",
        {"lr": 0.2, "beta2_decay": -0.5, "d": 2.0, "weight_decay": 0.3},
    ),
}
