"""Hyperball: turns matrices without changing their norm."""

import equinox as eqx

from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation
from ..._errors import InputError
from ..._matrices import DimensionNumbers
from ..._transforms.scale import ScaleByLearningRate, has_learning_rate
from ..._types import ScalarOrSchedule
from .norm_control import KeepNorm, Per, Radius, RelativeUpdate


class Hyperball(AbstractOptimizer):
    r"""Turns each matrix in the direction of `inner` and keeps its norm.

    !!! abstract "One step"

        $$\tilde p_t = p_{t-1} - \eta_t\, \|p_{t-1}\|\, \frac{u_t}{\|u_t\|}, \qquad
          p_t = R\, \frac{\tilde p_t}{\|\tilde p_t\|},$$

        where $u_t$ is the update of `inner`. If $u_t$ is orthogonal to the matrix, the
        learning rate is the tangent of the angle by which the matrix turns. Weight
        decay has no effect. Parameters that are not matrices move by $-\eta_t u_t$.

        $\eta$ is `learning_rate`, $R$ is `radius` (`"current"`).

    `Hyperball(ScaleByAdam(), ...)` is also known as AdamH. With
    [`eqopt.ScaleByMuon`][], it is MuonH, and with [`eqopt.ScaleBySOAP`][], SOAP-H.

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
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `inner`: the transformation that computes the direction, such as
        [`eqopt.ScaleByAdam`][]. It must not have a learning rate.
    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. It corresponds to
        about $\sqrt{\eta\lambda}$ for an AdamW with learning rate $\eta$ and weight
        decay $\lambda$.
    - `radius`: $R$: `"current"` for the norm $\|p\|$, which rounding changes a little
        over many steps; `"initial"` for the norm in the first step, which is kept in
        the state; or a positive number for all matrices. Defaults to `"current"`.
    - `per`: whether to use the norm of each `"matrix"`, or of each `"row"`, the weights
        of one output of a layer. Defaults to `"matrix"`.
    - `weight_dimension_numbers`: which parameters are matrices, and which of their axes
        are outputs and inputs. It is a tree of [`eqopt.MatrixDimensionNumbers`][] and
        `None` with the structure of the parameters or a prefix of it, or a function of
        the parameters that returns one. A single `MatrixDimensionNumbers` applies to
        all arrays with at least two axes. Defaults to `None`, which means
        [`eqopt.groups.layer_matrices`][]: the weights of Equinox's linear, convolution
        and recurrent layers, and arrays with two axes (inputs first) outside the layers
        of `equinox.nn`. Embeddings are not matrices. Other arrays with three or more
        axes outside these layers, such as your own stack of matrices, are then an
        error. Describe them with [`eqopt.groups.matrices`][] and
        [`eqopt.groups.stacked`][]. Each matrix in a stack has its own norm. If
        embeddings or the last layer count as matrices, exclude them as in the example.

    **Raises:**

    A `ValueError` if `inner` has a learning rate, and the errors of
    [`eqopt.KeepNorm`][].

    ??? cite "References"

        The code of the Marin project (`levanter`, `optim/adamh.py` and `muonh.py`) uses
        the current norm as the radius. NVIDIA's Emerging-Optimizers take the radius as
        an argument.

        ```bibtex
        @misc{marin2025adamh,
            author = {{The Marin Project}},
            title = {Levanter},
            url = {https://github.com/marin-community/levanter},
        }

        @misc{nvidia2025emerging,
            author = {{NVIDIA}},
            title = {Emerging-Optimizers},
            url = {https://github.com/NVIDIA-NeMo/Emerging-Optimizers},
        }
        ```
    """

    inner: AbstractTransformation
    learning_rate: ScalarOrSchedule
    radius: Radius = "current"
    per: Per = eqx.field(static=True, default="matrix")
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self) -> None:
        if has_learning_rate(self.inner):
            raise InputError(
                "Hyperball",
                "`inner` must not have a learning rate, but "
                f"{type(self.inner).__name__} has one. Pass `eqopt.ScaleByAdam()` "
                "instead of `eqopt.Adam`, for example.",
            )

    @property
    def chain(self) -> Chain:
        return Chain(
            self.inner,
            self.part(RelativeUpdate),
            self.part(ScaleByLearningRate),
            self.part(KeepNorm),
        )
