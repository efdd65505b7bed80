"""Transformations that look at each layer as a whole."""

import optax

import eqopt

from ..case import STACKED, Case, downhill


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
}
