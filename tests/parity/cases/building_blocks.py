"""Building blocks."""

import optax

import eqopt

from ..case import LINEAR, Case, is_matrix


CASES = {
    "identity": Case(eqopt.Identity(), optax.identity()),
    "set_to_zero": Case(eqopt.SetToZero(), optax.set_to_zero()),
    "scale": Case(eqopt.Scale(-0.3), optax.scale(-0.3)),
    "schedule": Case(
        eqopt.ScaleBySchedule(LINEAR[0]), optax.scale_by_schedule(LINEAR[1])
    ),
    "learning_rate": Case(
        eqopt.ScaleByLearningRate(0.1, flip_sign=False),
        optax.scale_by_learning_rate(0.1, flip_sign=False),
    ),
    "clip": Case(eqopt.Clip(0.4), optax.clip(0.4)),
    "global norm, clipping": Case(
        eqopt.ClipByGlobalNorm(0.7),
        optax.clip_by_global_norm(0.7),
    ),
    "global norm, not clipping": Case(
        eqopt.ClipByGlobalNorm(1e3),
        optax.clip_by_global_norm(1e3),
    ),
    "decay": Case(eqopt.AddDecayedWeights(0.2), optax.add_decayed_weights(0.2)),
    "decay, masked": Case(
        eqopt.AddDecayedWeights(0.2, is_matrix),
        optax.add_decayed_weights(0.2, is_matrix),
    ),
    "trace": Case(eqopt.Trace(0.8), optax.trace(0.8)),
    "trace, nesterov": Case(eqopt.Trace(0.8, True), optax.trace(0.8, True)),
}
