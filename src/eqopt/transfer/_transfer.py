"""The plan of a run, power laws of it, and rules for other batches, widths and depths."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from .._arguments.checks import check_fields
from .._arguments.construction import Module
from .._errors import InputError
from .._types import PositiveNumber, UnitNumber, ZeroOrMoreNumber


class Plan(Module):
    """The size of a training run, on which all rules of `eqopt.transfer` depend.

    !!! example

        ```python
        base = eqopt.transfer.Plan(tokens=1e9, batch_tokens=2**17, width=512)
        assert round(base.steps) == 7629
        ```

    **Arguments:**

    - `tokens`: the tokens of the whole run, a positive number. Without tokens, count
        examples everywhere.
    - `batch_tokens`: the tokens of one step, not its sequences. `steps` is `tokens /
        batch_tokens`.
    - `width`: the width of the model. Defaults to `None`: no rule may use it.
    - `depth`: the number of layers. Defaults to `None`.
    - `experts`: the number of experts. Only an [`eqopt.transfer.PowerLaw`][] with this
        exponent uses it. Defaults to `None`.

    **Raises:**

    A `ValueError` if a number is not positive, or if the run has less than one step.
    """

    tokens: PositiveNumber
    batch_tokens: PositiveNumber
    width: PositiveNumber | None = None
    depth: PositiveNumber | None = None
    experts: PositiveNumber | None = None

    def __check_init__(self) -> None:
        check_fields(self)
        if self.batch_tokens > self.tokens:
            raise InputError(
                f"`batch_tokens` must be at most `tokens`, {self.tokens}, but is "
                f"{self.batch_tokens}. Count tokens in both."
            )

    @property
    def steps(self) -> float:
        return self.tokens / self.batch_tokens


def ratio(name: str, base: Plan, plan: Plan) -> float:
    """`plan.name / base.name`; 1 if neither has it."""
    before, after = getattr(base, name), getattr(plan, name)
    if before is None and after is None:
        return 1.0
    if before is None or after is None:
        problem = f"one plan has `{name}`, and the other does not. Pass it to both."
        raise InputError(problem)
    return after / before


class Settings(Module):
    r"""Hyperparameters of an optimizer like Adam, as Python numbers.

    The fields have the names of the arguments of [`eqopt.AdamW`][]. If a method has only
    momentum, such as [`eqopt.Muon`][], it is `b1`.

    !!! example

        ```python
        tuned = eqopt.transfer.Settings(3e-3, b2=0.95, weight_decay=0.1)
        opt = eqopt.AdamW(**vars(tuned))
        ```

    **Arguments:**

    - `learning_rate`: $\eta \ge 0$, the peak of the schedule.
    - `b1`: $\beta_1 \in [0, 1)$. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `weight_decay`: $\lambda \ge 0$ of a decay $\eta \lambda p$ per step, as in
        [`eqopt.AdamW`][]. If your decay is $\lambda p$, divide it by $\eta$. Defaults to
        0.0.
    """

    learning_rate: ZeroOrMoreNumber
    b1: UnitNumber = 0.9
    b2: UnitNumber = 0.999
    eps: ZeroOrMoreNumber = 1e-8
    weight_decay: ZeroOrMoreNumber = 0.0


#
# Power laws
#


Numbers: TypeAlias = Sequence[float | int] | np.ndarray
Field: TypeAlias = Literal["tokens", "batch_tokens", "width", "depth", "experts"]
FIELDS: tuple[Field, ...] = get_args(Field)


class PowerLaw(Module):
    r"""A quantity, such as a learning rate, as a power law of a run's plan.

    If $x_i$ are the fields of the plan, $x_{i, 0}$ of the base, and $a_i$ exponents:

    $$y = y_0 \prod_i \left(\frac{x_i}{x_{i, 0}}\right)^{a_i}$$

    !!! example

        ```python
        base = eqopt.transfer.Plan(tokens=1e9, batch_tokens=2**17)
        law = eqopt.transfer.PowerLaw(base, 1e-3, tokens=-0.32, batch_tokens=0.5)
        rate = law(eqopt.transfer.Plan(tokens=8e9, batch_tokens=2**19))
        ```

    **Arguments:**

    - `base`: the plan at which the law is `value`.
    - `value`: $y_0 > 0$.
    - `tokens`, `batch_tokens`, `width`, `depth`, `experts`: the exponents of these
        fields. Default to 0.0: then plans need not have the field.
    """

    base: Plan
    value: PositiveNumber
    tokens: float | int = 0.0
    batch_tokens: float | int = 0.0
    width: float | int = 0.0
    depth: float | int = 0.0
    experts: float | int = 0.0

    def __call__(self, plan: Plan) -> float:
        return self.value * self.ratio(self.base, plan)

    def ratio(self, base: Plan, plan: Plan) -> float:
        """The value at `plan` divided by the value at `base`."""
        powers = {name: a for name in FIELDS if (a := getattr(self, name)) != 0}
        return math.prod(ratio(name, base, plan) ** a for name, a in powers.items())


def hyper_p() -> PowerLaw:
    r"""Returns HyperP's law of the learning rate, for Muon on the Frobenius sphere.

    With $T$ tokens, $B$ tokens per batch and $L$ layers, the law is

    $$\eta = 6 \cdot 10^{-4} \sqrt{\frac{B}{2^{21}}} \sqrt{\frac{8}{L}}
      \left(\frac{T}{9.5 \cdot 10^9}\right)^{-0.32}$$

    for matrices in [`eqopt.Hyperball`][], and for Adam, which trains the rest. Betas and
    $\varepsilon$ stay, and nothing on the sphere decays. Width and experts have no
    factor.

    The model divides residual branches by $\sqrt{2 L}$, and weights experts by the roots
    of their gates. The rates of [`eqopt.transfer.complete_p`][] would count the depth a
    second time. For your own base, use
    `rescale(..., rate=hyper_p(), batch_rule="rate")`.

    !!! example

        ```python
        plan = eqopt.transfer.Plan(tokens=9.5e10, batch_tokens=2**22, depth=16)
        assert round(eqopt.transfer.hyper_p()(plan), 6) == 0.000287
        ```

    ??? cite "Reference"

        ```bibtex
        @article{ren2026rethinking,
            title = {Rethinking Language Model Scaling under Transferable Hypersphere
                     Optimization},
            author = {Ren, Liliang and Liu, Yang and Shen, Yelong and Chen, Weizhu},
            journal = {arXiv:2603.28743},
            year = {2026},
        }
        ```
    """
    base = Plan(tokens=9.5e9, batch_tokens=2**21, depth=8)
    return PowerLaw(base, 6e-4, tokens=-0.32, batch_tokens=0.5, depth=-0.5)


class Fit(Module):
    """The result of [`eqopt.transfer.fit`][].

    **Attributes:**

    - `law`: the [`eqopt.transfer.PowerLaw`][], based at the geometric mean of the plans.
    - `errors`: the standard error of each fitted exponent, by name.
    - `r_squared`: the share of the variance of the logarithms that the law explains.
    - `covariance`: of the logarithm of the value at the base, and of the exponents.
    - `plans`, `values`: the points.
    """

    law: PowerLaw
    errors: dict[str, float]
    r_squared: float
    covariance: tuple[tuple[float, ...], ...]
    plans: tuple[Plan, ...]
    values: tuple[float, ...]

    def spread(self, plan: Plan) -> float:
        """The factor by which the law may be wrong at a plan: one standard error."""
        ratios = [ratio(name, self.law.base, plan) for name in self.errors]
        at = np.array([1.0, *map(math.log, ratios)])
        return math.exp(math.sqrt(at @ np.array(self.covariance) @ at))


def fit(
    plans: Sequence[Plan], values: Numbers, over: Sequence[Field] | None = None
) -> Fit:
    """Fits a power law to the best values of sweeps, by least squares of logarithms.

    !!! example

        ```python
        plans = [eqopt.transfer.Plan(t, 2**14) for t in (1e6, 2e6, 4e6, 8e6)]
        fit = eqopt.transfer.fit(plans, [8e-3, 6.1e-3, 5.2e-3, 4e-3])
        assert -0.4 < fit.law.tokens < -0.3 and fit.errors["tokens"] < 0.05
        ```

    The errors assume independent deviations of one size, and that the law still holds
    outside the sweeps.

    **Arguments:**

    - `plans`: the plan of each sweep.
    - `values`: the best value of each, such as a learning rate, from
        [`eqopt.transfer.find_best`][].
    - `over`: the fields of the plan that get an exponent. Defaults to all that differ.

    **Returns:**

    An [`eqopt.transfer.Fit`][], which [`eqopt.plot.power_law`][] draws.

    **Raises:**

    A `ValueError` if the points are at most as many as the unknowns, if a value is not
    positive, or if fields only differ together.
    """
    columns = {name: [getattr(plan, name) for plan in plans] for name in FIELDS}
    names = over or [name for name, column in columns.items() if len({*column}) > 1]
    if len(values) != len(plans) or not all(0 < y < math.inf for y in values):
        problem = f"`values` must be {len(plans)} positive numbers, but is {values}."
        raise InputError(problem)
    if len(plans) < len(names) + 2 or not names:
        raise InputError(
            f"{len(plans)} points that differ in {len(names)} fields do not give "
            "exponents and errors. Pass at least two points more than fields."
        )
    columns = {name: column for name, column in columns.items() if None not in column}

    means = {name: float(np.log(column).mean()) for name, column in columns.items()}
    x = np.stack([np.log(columns[name]) - means[name] for name in names], 1)
    if np.linalg.matrix_rank(x, tol=1e-9) < len(names):
        problem = f"the plans do not tell {' and '.join(names)} apart."
        fix = "Pass fewer as `over`, or add a plan in which only one of them differs."
        raise InputError(f"{problem} {fix}")
    x, y = np.insert(x, 0, 1.0, axis=1), np.log(np.asarray(values, float))
    inverse = np.linalg.inv(x.T @ x)
    solution = inverse @ x.T @ y
    rest, total = np.sum((y - x @ solution) ** 2), np.sum((y - y.mean()) ** 2)
    covariance = rest / (len(y) - len(solution)) * inverse
    errors = np.sqrt(np.diag(covariance)).tolist()
    base = Plan(**{name: math.exp(mean) for name, mean in means.items()})
    exponents = dict(zip(names, solution[1:].tolist(), strict=True))
    return Fit(
        law=PowerLaw(base, math.exp(solution[0]), **exponents),
        errors=dict(zip(names, errors[1:], strict=True)),
        r_squared=1 - float(rest / total) if total > 0 else 1.0,
        covariance=tuple(map(tuple, covariance.tolist())),
        plans=tuple(plans),
        values=tuple(map(float, values)),
    )


def find_best(values: Numbers, losses: Numbers) -> float:
    """Finds the best value of a sweep, between its points.

    It is the minimum of the parabola through the lowest loss and its two neighbours,
    over the logarithm of the value. If training fails with a neighbour, it is the value
    with the lowest loss.

    !!! example

        ```python
        best = eqopt.transfer.find_best([1e-3, 2e-3, 4e-3], [3.1, 3.0, 3.2])
        assert 1e-3 < best < 2e-3
        ```

    **Arguments:**

    - `values`: what was tried, such as learning rates: increasing positive numbers.
    - `losses`: the loss at each of them. It may be infinite or NaN.

    **Raises:**

    A `ValueError` if the first or the last loss is the lowest: the best value may be
    outside the sweep.
    """
    x, y = np.log(np.asarray(values, float)), np.asarray(losses, float)
    if len(x) != len(y) or not (np.isfinite(x).all() and (np.diff(x) > 0).all()):
        raise InputError(
            f"`values` must be {len(y)} increasing positive numbers, but is {values}."
        )
    i = int(np.argmin(np.where(np.isfinite(y), y, np.inf)))
    if i in (0, len(y) - 1):
        problem = f"the loss is lowest at an end, {values[i]}. Extend the sweep there."
        raise InputError(problem)
    near = slice(i - 1, i + 2)
    if not np.isfinite(y[near]).all():
        return float(values[i])
    a, b, _ = np.polyfit(x[near] - x[i], y[near], 2)
    return math.exp(x[i] - b / (2 * a)) if a > 0 else float(values[i])


#
# Rules for other batches and more tokens
#


class _Powers(NamedTuple):
    """The powers of the ratio of batches in the factor of each hyperparameter."""

    learning_rate: float
    b1: float  # of 1 - b1
    b2: float | None  # of 1 - b2; `None` if b2 keeps its half-life
    eps: float
    weight_decay: float


_RULES = {
    "half_life": _Powers(0.5, 0.0, None, -0.5, 0.0),
    "square_root": _Powers(0.5, 1.0, 1.0, -0.5, 0.0),
    "sde": _Powers(0.5, 0.0, 1.0, -0.5, 0.0),
    "sdew": _Powers(0.0, 0.0, 0.5, -0.5, 0.5),
    "rate": _Powers(0.5, 0.0, 0.0, 0.0, 0.0),
}
BatchRule: TypeAlias = Literal["half_life", "square_root", "sde", "sdew", "rate"]


def rescale(
    settings: Settings,
    base: Plan,
    plan: Plan,
    *,
    batch_rule: BatchRule = "half_life",
    rate: PowerLaw | None = None,
    weight_decay: Literal["timescale", "batch_rule"] = "timescale",
) -> Settings:
    r"""Scales hyperparameters of a small run for other batches and more tokens.

    With $\kappa$, the ratio of the tokens per batch, a rule multiplies:

    | `batch_rule` | $\eta$ | $1 - \beta_1$ | $1 - \beta_2$ | $\varepsilon$ | $\lambda$ |
    | --- | --- | --- | --- | --- | --- |
    | `"half_life"` | $\sqrt\kappa$ | $1$ | | $1 / \sqrt\kappa$ | $1$ |
    | `"square_root"` | $\sqrt\kappa$ | $\kappa$ | $\kappa$ | $1 / \sqrt\kappa$ | $1$ |
    | `"sde"` | $\sqrt\kappa$ | $1$ | $\kappa$ | $1 / \sqrt\kappa$ | $1$ |
    | `"sdew"` | $1$ | $1$ | $\sqrt\kappa$ | $1 / \sqrt\kappa$ | $\sqrt\kappa$ |
    | `"rate"` | $\sqrt\kappa$ | $1$ | $1$ | $1$ | $1$ |

    `"half_life"` replaces $\beta_2$ by $\beta_2^\kappa$: squared gradients are averaged
    over the same number of tokens. It suits batches of all sizes. Its paper tunes the
    rate, Marin's runs use $\sqrt\kappa$. `"square_root"` keeps the noise of Adam, and
    `"sdew"` of AdamW; `"sde"` is a variant in ArchScale, and `"rate"` HyperP's rule.

    By default, the decay instead keeps its timescale $B / (\eta \lambda T)$, the share
    of the run that the parameters average over, for the new rate $\eta'$ and $T'$
    tokens:

    $$\lambda' = \lambda\, \kappa\, \frac{\eta}{\eta'}\, \frac{T}{T'}$$

    For width and depth, see [`eqopt.transfer.complete_p`][] and [`eqopt.groups.mup`][].
    The number of experts changes nothing here, although each of more experts sees fewer
    tokens: to first order, what this does to rate and decay cancels (Peng et al.).

    !!! example

        ```python
        from eqopt.transfer import Plan, Settings, rescale

        base, plan = Plan(1e9, 2**17), Plan(8e9, 2**19)
        tuned = Settings(3e-3, b2=0.99, weight_decay=0.1)
        opt = eqopt.AdamW(**vars(rescale(tuned, base, plan)))
        ```

    **Arguments:**

    - `settings`: the hyperparameters that were tuned for `base`.
    - `base`, `plan`: the small run, and the run to plan.
    - `batch_rule`: a row of the table. Defaults to `"half_life"`.
    - `rate`: a law that gives the factor of the rate instead of the table, such as
        `eqopt.transfer.fit(...).law` or [`eqopt.transfer.hyper_p`][]. Only its exponents
        matter. Defaults to `None`: more tokens do not change the rate.
    - `weight_decay`: `"timescale"`, or `"batch_rule"` for the last column of the table.
        Both are about $\lambda$ in a decay $\eta \lambda p$. Defaults to `"timescale"`.

    **Raises:**

    A `ValueError` if a rule makes a beta 0 or negative.

    ??? cite "References"

        ```bibtex
        @article{malladi2022sdes,
            author = {Malladi, Sadhika and Lyu, Kaifeng and Panigrahi, Abhishek and
                      Arora, Sanjeev},
            title = {On the {SDE}s and Scaling Rules for Adaptive Gradient Algorithms},
            journal = {arXiv:2205.10287},
            year = {2022},
        }

        @article{marek2025small,
            author = {Marek, Martin and Lotfi, Sanae and others},
            title = {Small Batch Size Training for Language Models},
            journal = {arXiv:2507.07101},
            year = {2025},
        }

        @article{wang2024adamw,
            author = {Wang, Xi and Aitchison, Laurence},
            title = {How to Set {AdamW}'s Weight Decay as You Scale Model and Dataset
                     Size},
            journal = {arXiv:2405.13698},
            year = {2024},
        }

        @article{peng2026complete,
            author = {Peng, Hongwu and Dibua, Ohiremen and others},
            title = {Complete-mu{E}: Optimal Hyperparameter Transfer and Scaling for
                     {MoE} Models},
            journal = {arXiv:2605.23893},
            year = {2026},
        }
        ```
    """
    k = ratio("batch_tokens", base, plan)
    powers = _RULES[batch_rule]
    of_rate = k**powers.learning_rate if rate is None else rate.ratio(base, plan)
    of_decay = k**powers.weight_decay
    if weight_decay == "timescale":
        of_decay = k / of_rate / ratio("tokens", base, plan)

    def beta(name, power):
        old = getattr(settings, name)
        new = old if power == 0 else 1 - k**power * (1 - old)
        if new < 1e-9 and new < old:
            raise InputError(
                f"with `batch_rule={batch_rule!r}`, `{name}={old}` becomes {new:.3g} "
                f"for {k:.3g} times the batch. Use `batch_rule='half_life'`."
            )
        return new

    return Settings(
        learning_rate=settings.learning_rate * of_rate,
        b1=beta("b1", powers.b1),
        b2=settings.b2**k if powers.b2 is None else beta("b2", powers.b2),
        eps=settings.eps * k**powers.eps,
        weight_decay=settings.weight_decay * of_decay,
    )


def marin(
    plan: Plan, optimizer: Literal["adam", "adamh", "muonh"] = "adam"
) -> Settings:
    r"""Returns the hyperparameters of Marin's large runs, for a plan.

    For $T$ tokens, $B$ tokens per batch and a width of $d$:

    $$\begin{aligned}
      \eta_\text{adam} &= 0.06602\, T^{-0.395}\, d^{-0.15} \sqrt B, &
      \eta_\text{muonh} &= \tfrac{13}{3}\, \eta_\text{adam} \\
      \beta_2 &= 0.999^{B / 131072}, &
      \varepsilon &= 9.676 \cdot 10^{-18} \sqrt{T / B}
    \end{aligned}$$

    Rates are at most 0.05, and $\beta_2$ is in $[0.95, 0.9999]$. $\beta_1$ is 0.9062 for
    Adam, and 0.95 for the momentum of Muon. There is no weight decay, and no factor for
    depth or experts.

    The rates were fitted to language models with experts, with Muon and the last layer
    in [`eqopt.Hyperball`][], a warm-up of 1 % of the steps, a linear decay to 5 %, and no
    clipping. In a sweep of theirs, the best $\beta_2$ was smaller than this. They found
    33 million tokens per batch stable, and 67 million unstable. $\varepsilon$ is from
    their program; the plan of one run has 8e-19, because it counts sequences.

    !!! example

        ```python
        plan = eqopt.transfer.Plan(tokens=2e10, batch_tokens=2**20, width=1024)
        opt = eqopt.AdamW(**vars(eqopt.transfer.marin(plan)))
        ```

    **Arguments:**

    - `plan`: the run, with its width.
    - `optimizer`: `"adam"` for embeddings, norms and biases, `"adamh"` for the last
        layer, `"muonh"` for all other matrices. Defaults to `"adam"`.

    ??? cite "Reference"

        ```bibtex
        @misc{marin2026,
            author = {{Marin Community}},
            title = {Marin},
            howpublished = {https://github.com/marin-community/marin},
            year = {2026},
        }
        ```
    """
    if plan.width is None:
        raise InputError("the plan must have a `width`.")
    root = math.sqrt(plan.batch_tokens)
    rate = min(0.05, 0.06602 * plan.tokens**-0.395 * plan.width**-0.15 * root)
    return Settings(
        learning_rate=rate if optimizer == "adam" else min(0.05, 13 / 3 * rate),
        b1=0.95 if optimizer == "muonh" else 0.9062,
        b2=min(max(0.999 ** (plan.batch_tokens / 131072), 0.95), 0.9999),
        eps=9.676e-18 * math.sqrt(plan.steps),
    )


#
# Factors for wider and deeper models, by the role of a parameter
#


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
    n, depth = (ratio(name, base, plan) for name in ("width", "depth"))
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
