"""Hyperball: turns matrices without changing their norm."""

import equinox as eqx

from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation
from ..._transforms.scale import ScaleByLearningRate, has_learning_rate
from ..._trees.axes import DimensionNumbers
from ..._types import ScalarOrSchedule
from .norm_control import KeepNorm, Per, Radius, RelativeUpdate


class Hyperball(AbstractOptimizer):
    r"""Turns each matrix in the direction of `inner` and keeps its norm.

    $$\tilde p_t = p_{t-1} - \eta_t\, \|p_{t-1}\|\, \frac{u_t}{\|u_t\|}, \qquad
      p_t = R\, \frac{\tilde p_t}{\|\tilde p_t\|},$$

    where $u_t$ is the update of `inner`. If $u_t$ is orthogonal to the matrix, the
    learning rate is the tangent of the angle by which the matrix turns. Weight decay
    has no effect. Parameters that are not matrices move by $-\eta_t u_t$.

    `Hyperball(ScaleByAdam(), ...)` is also known as AdamH. With [`eqopt.ScaleByMuon`][],
    it is MuonH, and with [`eqopt.ScaleBySOAP`][], SOAP-H.

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
        [`eqopt.ScaleByAdam`][]. It must not have a learning rate.
    - `learning_rate`: see [`eqopt.SGD`][]. It corresponds to about $\sqrt{\eta\lambda}$
        for an AdamW with learning rate $\eta$ and weight decay $\lambda$.
    - `radius`: see [`eqopt.KeepNorm`][].
    - `per`: see [`eqopt.RelativeUpdate`][].
    - `weight_dimension_numbers`: see [`eqopt.RelativeUpdate`][]. If embeddings or the
        last layer count as matrices, exclude them as in the example.

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
                "Hyperball: `inner` must not have a learning rate, but "
                f"{type(self.inner).__name__} has one. Pass the transformation that "
                "computes the direction, such as `eqopt.ScaleByAdam()` instead of "
                "`eqopt.Adam`, and pass the learning rate to Hyperball."
            )

    @property
    def chain(self) -> Chain:
        return Chain(
            self.inner,
            self.part(RelativeUpdate),
            self.part(ScaleByLearningRate),
            self.part(KeepNorm),
        )
