"""Factors for wider and deeper models, by the role of a parameter."""

from typing import Literal

from .._arguments.construction import Module
from .._types import PositiveNumber, ZeroOrMoreNumber
from ._plan import Plan, Settings, ratio


class Factors(Module):
    r"""What multiplies the hyperparameters of parameters with one role.

    **Arguments:**

    - `init`: of the standard deviation of the initial values. Defaults to 1.0.
    - `learning_rate`: of $\eta$. Defaults to 1.0.
    - `weight_decay`: of $\lambda$ in a decay $\eta \lambda p$, whose $\eta$ has its own
        factor. It is 0 for parameters that do not decay. Defaults to 1.0.
    - `eps`: of Adam's $\varepsilon$. Defaults to 1.0.
    """

    init: PositiveNumber = 1.0
    learning_rate: PositiveNumber = 1.0
    weight_decay: ZeroOrMoreNumber = 1.0
    eps: PositiveNumber = 1.0

    def apply(self, settings: Settings) -> Settings:
        """Multiplies the rate, the decay and epsilon."""
        names = "learning_rate", "weight_decay", "eps"
        scaled = {name: getattr(settings, name) * getattr(self, name) for name in names}
        return Settings(b1=settings.b1, b2=settings.b2, **scaled)


class RoleFactors(Module):
    """The result of [`eqopt.transfer.complete_p`][].

    **Attributes:**

    - `hidden`: the [`eqopt.transfer.Factors`][] of matrices in the residual branches:
        attention, MLP and experts.
    - `vector`: of biases and norms in the branches.
    - `embedding`: of embeddings, also of positions.
    - `output`: of the last layer.
    - `final_norm`: of the norm before it.
    - `residual`: what the model multiplies each residual branch by.
    - `logits`: what it multiplies the output of the last layer by.
    """

    hidden: Factors
    vector: Factors
    embedding: Factors
    output: Factors
    final_norm: Factors
    residual: float
    logits: float


def complete_p(
    base: Plan,
    plan: Plan,
    *,
    optimizer: Literal["adam", "muon", "sphere"] = "adam",
    alpha: float | int = 1.0,
    weight_decay: Literal["constant", "per_width"] = "constant",
) -> RoleFactors:
    r"""Computes the factors of CompleteP for a wider and deeper transformer.

    With $N$ and $\Lambda$, the ratios of width and depth, for Adam:

    | role | initial std | $\eta$ | $\lambda$ | $\varepsilon$ |
    | --- | --- | --- | --- | --- |
    | `hidden` | $1/\sqrt N$ | $\Lambda^{\alpha-1} / N$ | $N$ | $\Lambda^{-\alpha} / N$ |
    | `vector` | $1$ | $\Lambda^{\alpha-1}$ | $0$ | $\Lambda^{-\alpha} / N$ |
    | `embedding`, `output` | $1$ | $1$ | $1$ | $1 / N$ |
    | `final_norm` | $1$ | $1$ | $0$ | $1 / N$ |

    The model multiplies residual branches by $\Lambda^{-\alpha}$ and logits by $1 / N$,
    and divides attention by the size of a head. $\alpha = 1$ is CompleteP; $\alpha = 1/2$
    is Depth-µP, with the same factor for the depth as [`eqopt.transfer.hyper_p`][].

    Steps of Muon, and steps on a sphere, suit all widths: with `"muon"` and `"sphere"`,
    $\eta$ of `hidden` is not divided by $N$, and on a sphere it does not decay. Adam
    trains the other roles, as in the table.

    $\lambda$ multiplies $\eta$. With `"constant"`, $\eta \lambda$ of `hidden` is the same
    at all widths, as in CompleteP. With `"per_width"`, it falls as $1 / N$, which Qiu et
    al. find better for Muon, SOAP and Shampoo.

    The number of experts has no factor, at the same share of active ones (Jiang et al.).

    !!! example

        ```python
        from eqopt.transfer import Plan, Settings, complete_p

        base, plan = (Plan(1e9, 2**17, w, depth=d) for w, d in ((256, 4), (1024, 32)))
        hidden = complete_p(base, plan).hidden.apply(Settings(4e-3, weight_decay=0.1))
        assert (hidden.learning_rate, hidden.weight_decay) == (1e-3, 0.4)
        ```

    [`eqopt.groups.mup`][] has the factors of the width for each array, from its shapes.
    If you use both, omit the widths of the plans.

    **Arguments:**

    - `base`, `plan`: the small run and the run to plan, with width and depth. What both
        lack has the ratio 1.
    - `optimizer`: of `hidden`: `"adam"`, `"muon"` for [`eqopt.Muon`][] without
        `consistent_rms`, or `"sphere"` for [`eqopt.Hyperball`][]. Defaults to `"adam"`.
    - `alpha`: $\alpha$, from 1/2 to 1. Defaults to 1.0.
    - `weight_decay`: what $\eta \lambda$ of `hidden` does: `"constant"` or `"per_width"`.
        Defaults to `"constant"`.

    ??? cite "References"

        ```bibtex
        @article{dey2025dont,
            author = {Dey, Nolan and Zhang, Bin Claire and Noci, Lorenzo and others},
            title = {Don't Be Lazy: {CompleteP} Enables Compute-Efficient Deep
                     Transformers},
            journal = {arXiv:2505.01618},
            year = {2025},
        }

        @article{jiang2026hyperparameter,
            author = {Jiang, Tianze and Bordelon, Blake and Pehlevan, Cengiz and
                      Hanin, Boris},
            title = {Hyperparameter Transfer with Mixture-of-Experts Layers},
            journal = {arXiv:2601.20205},
            year = {2026},
        }

        @article{qiu2025hyperparameter,
            author = {Qiu, Shikai and Chen, Zixi and Phan, Hoang and Lei, Qi and
                      Wilson, Andrew Gordon},
            title = {Hyperparameter Transfer Enables Consistent Gains of
                     Matrix-Preconditioned Optimizers Across Scales},
            journal = {arXiv:2512.05620},
            year = {2025},
        }
        ```
    """
    n, depth = (ratio("complete_p", name, base, plan) for name in ("width", "depth"))
    of_width = 1 / n if optimizer == "adam" else 1.0
    product = 0.0 if optimizer == "sphere" else 1.0
    of_depth, eps = depth ** (alpha - 1), depth**-alpha / n
    # Outside the branches, epsilon has no factor of the depth (the paper's equation 40),
    # although early versions of its program had it.
    hidden = Factors(
        init=n**-0.5,
        learning_rate=of_width * of_depth,
        weight_decay=product / of_width / (n if weight_decay == "per_width" else 1.0),
        eps=eps,
    )
    return RoleFactors(
        hidden=hidden,
        vector=Factors(learning_rate=of_depth, weight_decay=0.0, eps=eps),
        embedding=Factors(eps=1 / n),
        output=Factors(eps=1 / n),
        final_norm=Factors(weight_decay=0.0, eps=1 / n),
        residual=depth**-alpha,
        logits=1 / n,
    )
