"""LAMB: Adam with steps in proportion to each layer."""

import equinox as eqx
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.trust_ratio import ScaleByTrustRatio
from ..._transforms.weight_decay import AddDecayedWeights, WeightDecay
from ..._types import Hyperparameter, Mask, ScalarOrSchedule
from ..adam.adam import ScaleByAdam


class LAMB(AbstractOptimizer):
    r"""LAMB: AdamW with steps proportional to the norm of each layer.

    $$p_t = p_{t-1} - \eta_t\, \frac{\|p_{t-1}\|}{\|d_t\|}\, d_t, \qquad
      d_t = u_t + \lambda p_{t-1},$$

    where $u_t$ is the update of [`eqopt.ScaleByAdam`][], which has the equations, and
    norms are taken over one leaf at a time.

    A leaf with norm zero moves by $-\eta_t\, d_t$.

    **Arguments:**

    - `learning_rate`, `weight_decay`, `mask`: see [`eqopt.AdamW`][].
    - All others: see [`eqopt.ScaleByAdam`][].

    ??? cite "Reference"

        ```bibtex
        @inproceedings{you2020large,
            author = {You, Yang and Li, Jing and Reddi, Sashank and Hseu, Jonathan and
                      Kumar, Sanjiv and Bhojanapalli, Srinadh and Song, Xiaodan and
                      Demmel, James and Keutzer, Kurt and Hsieh, Cho-Jui},
            title = {Large Batch Optimization for Deep Learning: Training {BERT} in 76
                     minutes},
            booktitle = {International Conference on Learning Representations},
            year = {2020},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-6
    eps_root: Hyperparameter = 0.0
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        return Chain(
            self.part(ScaleByAdam),
            self.part(AddDecayedWeights),
            ScaleByTrustRatio(),
            self.part(ScaleByLearningRate),
        )
