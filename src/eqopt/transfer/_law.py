"""The plan of a run, and power laws of it, given or fitted."""

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

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
            fix = "Count tokens in both."
            raise InputError(
                "Plan",
                f"`batch_tokens` must be at most `tokens`, {self.tokens}, but is "
                f"{self.batch_tokens}. {fix}",
            )

    @property
    def steps(self) -> float:
        return self.tokens / self.batch_tokens


def ratio(owner: str, name: str, base: Plan, plan: Plan) -> float:
    """`plan.name / base.name`; 1 if neither has it."""
    before, after = getattr(base, name), getattr(plan, name)
    if before is None and after is None:
        return 1.0
    if before is None or after is None:
        problem = f"one plan has `{name}`, and the other does not. Pass it to both."
        raise InputError(owner, problem)
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
        return math.prod(
            ratio("PowerLaw", name, base, plan) ** a for name, a in powers.items()
        )


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
        ratios = [ratio("Fit", name, self.law.base, plan) for name in self.errors]
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
        raise InputError("fit", problem)
    if len(plans) < len(names) + 2 or not names:
        fix = "Pass at least two points more than fields."
        raise InputError(
            "fit",
            f"{len(plans)} points that differ in {len(names)} fields do not give "
            f"exponents and errors. {fix}",
        )
    columns = {name: column for name, column in columns.items() if None not in column}

    means = {name: float(np.log(column).mean()) for name, column in columns.items()}
    x = np.stack([np.log(columns[name]) - means[name] for name in names], 1)
    if np.linalg.matrix_rank(x, tol=1e-9) < len(names):
        problem = f"the plans do not tell {' and '.join(names)} apart."
        fix = "Pass fewer as `over`, or add a plan in which only one of them differs."
        raise InputError("fit", f"{problem} {fix}")
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
        problem = (
            f"`values` must be {len(y)} increasing positive numbers, but is {values}."
        )
        raise InputError("find_best", problem)
    i = int(np.argmin(np.where(np.isfinite(y), y, np.inf)))
    if i in (0, len(y) - 1):
        problem = f"the loss is lowest at an end, {values[i]}. Extend the sweep there."
        raise InputError("find_best", problem)
    near = slice(i - 1, i + 2)
    if not np.isfinite(y[near]).all():
        return float(values[i])
    a, b, _ = np.polyfit(x[near] - x[i], y[near], 2)
    return math.exp(x[i] - b / (2 * a)) if a > 0 else float(values[i])
