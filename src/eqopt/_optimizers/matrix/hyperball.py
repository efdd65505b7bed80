"""Hyperball: matrices that turn, and keep their length."""

import equinox as eqx

from ..._combinators.chain import Chain
from ..._dimension_numbers import DimensionNumbers
from ..._transformation import AbstractOptimizer, AbstractTransformation
from ..._transforms.scale import ScaleByLearningRate, has_learning_rate
from ..._types import ScalarOrSchedule
from .norm_control import KeepNorm, Per, Radius, RelativeUpdate


class Hyperball(AbstractOptimizer):
    r"""Turns each matrix in the direction of `inner`, and keeps its norm.

    $$\tilde p_t = p_{t-1} - \eta_t\, \|p_{t-1}\|\, \frac{u_t}{\|u_t\|}, \qquad
      p_t = R\, \frac{\tilde p_t}{\|\tilde p_t\|},$$

    where $u_t$ is the update of `inner`. If $u_t$ is orthogonal to the matrix, the
    learning rate is the tangent of the angle by which the matrix turns. Weight decay
    has no effect. Parameters that are not matrices move by $-\eta_t u_t$.

    `Hyperball(ScaleByAdam(), ...)` is also known as AdamH; with
    [`eqopt.ScaleByMuon`][] it is MuonH, with [`eqopt.ScaleBySOAP`][] SOAP-H.

    !!! example

        ```python
        head = eqopt.groups.where(lambda model: model.head)
        opt = eqopt.Partition(
            {
                "head": eqopt.AdamW(3e-3),
                "rest": eqopt.Hyperball(eqopt.ScaleByAdam(b2=0.95), 0.02),
            },
            eqopt.groups.label({"head": head, "rest": eqopt.groups.everything}),
        )
        ```

    **Arguments:**

    - `inner`: the transformation that computes the direction, such as
        [`eqopt.ScaleByAdam`][]: a transformation without a learning rate.
    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. About
        $\sqrt{\eta\lambda}$ of an AdamW with learning rate $\eta$ and decay $\lambda$.
    - `radius`: $R$, as for [`eqopt.KeepNorm`][].
    - `per`, `weight_dimension_numbers`: as for [`eqopt.RelativeUpdate`][]. Embeddings and
        the last layer count as matrices; leave them out as in the example.

    **Raises:**

    A `ValueError` if `inner` has a learning rate, and the errors of
    [`eqopt.KeepNorm`][].

    ??? cite "Reference"

        The code of the Marin project (`levanter`, `optim/adamh.py` and `muonh.py`) uses
        the current norm as the radius. NVIDIA's Emerging-Optimizers take the radius as
        an argument.
    """

    inner: AbstractTransformation
    learning_rate: ScalarOrSchedule
    radius: Radius = "current"
    per: Per = eqx.field(static=True, default="matrix")
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        if has_learning_rate(self.inner):
            raise ValueError(
                "Hyperball: `inner` gives a direction, but "
                f"{type(self.inner).__name__} has a learning rate. Take the "
                "transformation that it is made of, such as `eqopt.ScaleByAdam()` for "
                "`eqopt.Adam`; the learning rate is Hyperball's."
            )

    @property
    def chain(self) -> Chain:
        return Chain(
            self.inner,
            self.part(RelativeUpdate),
            self.part(ScaleByLearningRate),
            self.part(KeepNorm),
        )
