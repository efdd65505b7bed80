"""Gradient descent with noise."""

from ..._transforms.noise import AddNoise
from ..._types import Hyperparameter, Key, ScalarOrSchedule, ZeroOrMore
from ..recipe import AbstractRecipe, ScaleByLearningRate


class NoisySGD(AbstractRecipe):
    r"""Gradient descent with decaying noise.

    !!! abstract "One step"

        $$u_t = g_t + \xi_t, \qquad
          \xi_t \sim \mathcal N\!\left(0, \frac{\sigma^2}{t^\gamma}\right)$$

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.AddNoise`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. $\eta$ is
        `learning_rate`, $\sigma^2$ is `eta` (0.01), $\gamma$ is `gamma` (0.55).

    !!! example

        ```python
        opt = eqopt.NoisySGD(0.1)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `eta`, `gamma`: $\sigma^2, \gamma$, the variance of the noise in the first
        step, and how fast it decays. Default to 0.01 and 0.55.
    - `key`: a seed or a random key. Defaults to the seed 0, so the noise is the same in
        each run.

    **When to use it:** for very deep or recurrent networks that get stuck under plain
    gradient descent. It does not protect personal data: for that, see
    [`eqopt.DPSGD`][].

    ??? cite "Reference"

        ```bibtex
        @article{neelakantan2015adding,
            author = {Neelakantan, Arvind and Vilnis, Luke and Le, Quoc V. and
                      Sutskever, Ilya and Kaiser, Lukasz and Kurach, Karol and Martens,
                      James},
            title = {Adding Gradient Noise Improves Learning for Very Deep Networks},
            journal = {arXiv:1511.06807},
            year = {2015},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    eta: ZeroOrMore = 0.01
    gamma: Hyperparameter = 0.55
    key: Key = 0

    _parts = AddNoise, ScaleByLearningRate
