"""Adaptive gradients: sums and means of squares."""

import optax

import eqopt

from ..case import COSINE, LINEAR, Case, TorchCase, is_matrix, tree_mask


OTHER = {"decay": 0.7, "eps": 1e-3, "initial_scale": 0.5}
CORRECTED = {
    "eps": 1e-2,
    "initial_scale": 0.5,  # or the first variance is the rounding of a difference
    "eps_in_sqrt": False,
    "bias_correction": True,
}

CASES = {
    "rms": Case(eqopt.ScaleByRMS(), optax.scale_by_rms()),
    "rms, other": Case(eqopt.ScaleByRMS(**OTHER), optax.scale_by_rms(**OTHER)),
    "rms, corrected": Case(
        eqopt.ScaleByRMS(**CORRECTED), optax.scale_by_rms(**CORRECTED)
    ),
    "stddev": Case(eqopt.ScaleByStddev(), optax.scale_by_stddev()),
    "stddev, other": Case(eqopt.ScaleByStddev(**OTHER), optax.scale_by_stddev(**OTHER)),
    "stddev, corrected": Case(
        eqopt.ScaleByStddev(**CORRECTED), optax.scale_by_stddev(**CORRECTED)
    ),
    "rmsprop": Case(eqopt.RMSprop(0.1), optax.rmsprop(0.1)),
    "rmsprop, momentum": Case(
        eqopt.RMSprop(COSINE[0], momentum=0.8, **OTHER),
        optax.rmsprop(COSINE[1], momentum=0.8, **OTHER),
    ),
    "rmsprop, centered": Case(
        eqopt.RMSprop(
            LINEAR[0], centered=True, momentum=0.8, nesterov=True, **CORRECTED
        ),
        optax.rmsprop(
            LINEAR[1], centered=True, momentum=0.8, nesterov=True, **CORRECTED
        ),
    ),
    "rss": Case(eqopt.ScaleByRSS(), optax.scale_by_rss()),
    "rss, zeros": Case(eqopt.ScaleByRSS(0.0, 0.0), optax.scale_by_rss(0.0, 0.0)),
    "adagrad": Case(eqopt.Adagrad(0.1), optax.adagrad(0.1)),
    "adagrad, schedule": Case(
        eqopt.Adagrad(COSINE[0], 0.5, 1e-3), optax.adagrad(COSINE[1], 0.5, 1e-3)
    ),
    "adagrad, zeros": Case(
        eqopt.Adagrad(0.1, 0.0, 1e-3), optax.adagrad(0.1, 0.0, 1e-3)
    ),
    "scale by adadelta": Case(
        eqopt.ScaleByAdadelta(0.7, 1e-3), optax.scale_by_adadelta(0.7, 1e-3)
    ),
    "scale by adadelta, rho = 0": Case(
        eqopt.ScaleByAdadelta(0.0), optax.scale_by_adadelta(0.0)
    ),
    "adadelta": Case(eqopt.Adadelta(), optax.adadelta(1.0)),
    "adadelta, masked": Case(
        eqopt.Adadelta(LINEAR[0], weight_decay=0.3, mask=is_matrix),
        optax.adadelta(LINEAR[1], weight_decay=0.3, weight_decay_mask=is_matrix),
    ),
    "adadelta, other": Case(
        eqopt.Adadelta(10.0, 0.5, 1e-3, LINEAR[0], tree_mask),
        optax.adadelta(10.0, 0.5, 1e-3, LINEAR[1], tree_mask),
    ),
    # Optax's SM3 takes neither scalars nor schedules.
    "scale by sm3": Case(
        eqopt.ScaleBySM3(), optax.scale_by_sm3(), shapes=((3, 4), (4,), (2, 3, 2))
    ),
    "scale by sm3, mean": Case(
        eqopt.ScaleBySM3(0.5, 0.8, 1e-3),
        optax.scale_by_sm3(0.5, 0.8, 1e-3),
        shapes=((3, 4), (4,), (2, 3, 2)),
    ),
    "sm3": Case(eqopt.SM3(0.1), optax.sm3(0.1), shapes=((3, 4), (4,), (2, 3, 2))),
    "sm3, other momentum": Case(
        eqopt.SM3(0.1, 0.5), optax.sm3(0.1, 0.5), shapes=((1, 4), (1,), (2, 3, 2, 1))
    ),
    "sm3, no momentum": Case(
        eqopt.SM3(0.1, None), optax.sm3(0.1, 0.0), shapes=((3, 4), (4,), (2, 2))
    ),
    "scale by madgrad": Case(
        eqopt.ScaleByMADGRAD(COSINE[0], 0.5, 1e-3),
        optax.contrib.scale_by_madgrad(COSINE[1], 0.5, 1e-3),
    ),
    "madgrad": Case(eqopt.MADGRAD(0.1), optax.contrib.madgrad(0.1)),
    "madgrad, decay": Case(
        eqopt.MADGRAD(LINEAR[0], 0.0, 0.3), optax.contrib.madgrad(LINEAR[1], 0.0, 0.3)
    ),
}

TORCH = {
    "rmsprop": TorchCase(
        eqopt.RMSprop(0.01, 0.99, eps_in_sqrt=False), "RMSprop", {"lr": 0.01}
    ),
    "rmsprop, centered": TorchCase(
        eqopt.RMSprop(0.1, 0.8, 1e-3, eps_in_sqrt=False, centered=True, momentum=0.7),
        "RMSprop",
        {"lr": 0.1, "alpha": 0.8, "eps": 1e-3, "centered": True, "momentum": 0.7},
    ),
    "adagrad": TorchCase(eqopt.Adagrad(0.1, 0.0, 0.0), "Adagrad", {"lr": 0.1}),
    "adagrad, lr_decay": TorchCase(
        eqopt.Adagrad(lambda t: 0.1 / (1 + 0.5 * t.astype(float)), 0.3, 0.0),
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.5, "initial_accumulator_value": 0.3, "eps": 0.0},
    ),
    "adadelta": TorchCase(eqopt.Adadelta(), "Adadelta", {}),
    "adadelta, other": TorchCase(
        eqopt.Adadelta(0.5, 0.8, 1e-3, weight_decay=0.3),
        "Adadelta",
        {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.3},
    ),
}
