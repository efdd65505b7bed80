"""Gradient descent that reveals little about any single example."""

import equinox as eqx
from jaxtyping import DTypeLike

from ..._transforms.privacy import DifferentiallyPrivateAggregate
from ..._types import Hyperparameter, Key, Positive, ScalarOrSchedule, ZeroOrMore
from ..recipe import AbstractRecipe
from .sgd import SGD


class DPSGD(AbstractRecipe):
    r"""Differentially private gradient descent, private only with the right gradients.

    Without `clipped`, they are per-example gradients, with an additional first axis.
    With `clipped=True`, they are the sum from [`eqopt.microbatching.clipped_grad`][].
    A mean, or a gradient that is not clipped, looks like such a sum: it gives no
    privacy, and no error. Do not put it inside [`eqopt.SkipStep`][] or
    [`eqopt.ApplyIfFinite`][]: they decide by the gradients before the noise, which
    reveals something about the data.

    !!! abstract "One step"

        $$u_t = \frac{1}{B} \left(
            \sum_i g_i \cdot \min\left(1, \frac{C}{\|g_i\|_2}\right)
            + \sigma C\, \xi \right), \qquad \xi \sim \mathcal N(0, I),$$

        where $g_i$ is the gradient of example $i$.

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the noisy mean of clipped per-example gradients of
        [`eqopt.DifferentiallyPrivateAggregate`][].

        With `momentum`, $m_t = \beta m_{t-1} + u_t$ replaces $u_t$ in the step. If
        `nesterov` is also set, $u_t + \beta m_t$ replaces it.

        $\eta$ is `learning_rate`, $C$ is `l2_norm_clip`, $\sigma$ is
        `noise_multiplier`, $B$ is `batch_size`, $\beta$ is `momentum`. At the start,
        $m_0 = 0$. By default, `momentum` is `None`.

    !!! example

        ```python
        opt = eqopt.DPSGD(0.1, 1.0, 1.1, key=0, batch_size=256, clipped=True)
        state = opt.init(model)
        clipped = eqopt.microbatching.clipped_grad(loss, 1.0, weights=is_real)
        grads, _ = clipped(model, batch)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `l2_norm_clip`: $C \ge 0$, the largest global norm of the gradient of an example.
        With `clipped`, it is the most that an example contributes to the sum. If
        `clipped_grad` has `groups`, this is the root of the sum of the squares of their
        bounds, $C \sqrt K$ for $K$ groups with one bound $C$. If it has `weights`, it
        is the bound times the largest weight that an example can have.
    - `noise_multiplier`: $\sigma \ge 0$, the ratio of the noise to $C$. To compute the
        privacy guarantee, use a privacy accountant, which also needs to know how
        batches are drawn.
    - `key`: a random key, or a seed. Keep it secret: with the key, the noise can be
        subtracted.
    - `momentum`: $\beta$, a number or a 0-d array. Defaults to `None`, which means no
        momentum. The state then only has the step count.
    - `nesterov`: whether to use Nesterov momentum; without effect if `momentum` is
        `None`. Defaults to `False`.
    - `accumulator_dtype`: the dtype in which the momentum is stored. Defaults to
        `None`, which means the dtype of each parameter, at least float32.
    - `batch_size`: $B > 0$, the expected number of examples. Defaults to `None`, which
        means the number of gradients.
    - `clipped`: whether updates are the sum of clipped gradients, with norms of at most
        `l2_norm_clip`. This cannot be checked, and the privacy guarantee depends on it.
        It needs `batch_size`. Defaults to `False`.

    **When to use it:** to train on personal data with a guarantee for each example, with
    an accountant for the privacy budget. The noise costs accuracy: use batches as large
    as possible, and models no larger than necessary.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{abadi2016deep,
            author = {Abadi, Martin and Chu, Andy and Goodfellow, Ian and McMahan, H.
                      Brendan and Mironov, Ilya and Talwar, Kunal and Zhang, Li},
            title = {Deep Learning with Differential Privacy},
            booktitle = {ACM SIGSAC Conference on Computer and Communications Security},
            year = {2016},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    l2_norm_clip: ZeroOrMore
    noise_multiplier: ZeroOrMore
    key: Key
    momentum: Hyperparameter | None = None
    nesterov: bool = False
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    batch_size: Positive | None = None
    clipped: bool = eqx.field(static=True, default=False)

    _parts = DifferentiallyPrivateAggregate, SGD
