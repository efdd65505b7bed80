"""What describes a run, and the hyperparameters that follow from it."""

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
                "Plan",
                f"`batch_tokens` must be at most `tokens`, {self.tokens}, but is "
                f"{self.batch_tokens}. Count tokens in both.",
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
