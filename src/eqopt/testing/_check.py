"""Checks of one law or of all of them, and what they raise."""

from collections.abc import Collection

import jax

from .._core import AbstractTransformation
from .._errors import InputError
from .._trees.leaves import briefly, parameters
from .._types import PyTree
from . import _laws as _laws  # defines them
from ._law import BY_NAME, Breach
from ._trial import Extra, Trial


_ANY_STEP = (
    "make `update` and `step` work with this model under `eqx.filter_jit`, and pass "
    "extra arguments that they need as `extra`"
)

LAWS: tuple[str, ...] = tuple(BY_NAME)
"""The names of all laws."""


class LawError(AssertionError):
    """A transformation breaks laws.

    The message has one sentence for each broken law: its name, the key path, the value
    found, the value expected and the likely fix. `broken` maps names of laws to their
    sentences.
    """

    broken: dict[str, str]


def check_law(
    law: str, opt: AbstractTransformation, model: PyTree, *, extra: Extra | None = None
) -> None:
    """Checks one law.

    !!! example

        ```python
        @pytest.mark.parametrize("law", eqopt.testing.LAWS)
        def test_my_optimizer(law):
            eqopt.testing.check_law(law, MyOptimizer(1e-3), model)
        ```

    **Arguments:**

    - `law`: a name from [`eqopt.testing.LAWS`][].
    - `opt`, `model`, `extra`: see [`eqopt.testing.check_laws`][].

    **Raises:**

    An [`eqopt.testing.LawError`][] if `opt` breaks the law, and a `ValueError` if there
    is no such law.
    """
    check_laws(opt, model, extra=extra, only=law)


def check_laws(
    opt: AbstractTransformation,
    model: PyTree,
    *,
    extra: Extra | None = None,
    only: str | Collection[str] | None = None,
    skip: str | Collection[str] = (),
) -> None:
    """Checks the laws that every transformation obeys, and reports all that are broken.

    The gradients are random numbers with the shapes and dtypes of the parameters. Most
    laws compile one or two programs, so choose a small model: all laws take some seconds.

    !!! example

        ```python
        def test_my_optimizer():
            eqopt.testing.check_laws(MyOptimizer(1e-3), model)
        ```

    **Arguments:**

    - `opt`: a transformation, such as an optimizer or a chain.
    - `model`: any pytree with floating-point or complex arrays, such as an
        `eqx.nn.MLP`. With a single array, `partly_trained` has nothing to check.
    - `extra`: extra arguments for each `update` and `step`, such as `value` or
        `value_fn`: a mapping, or a function of the parameters that returns one.
        `None` means none.
    - `only`: the laws to check, by name; `None` means all.
    - `skip`: laws not to check, by name. A dict from names to reasons works, too.

    **Raises:**

    An [`eqopt.testing.LawError`][], which is an `AssertionError`, if a law is broken, and
    a `ValueError` for the name of a law that does not exist, or a model without
    parameters. If `opt.init` rejects the model, its error.
    """
    skipped = names("skip", skip)
    asked = LAWS if only is None else names("only", only)
    trial = Trial(opt, model, extra)
    trial.state  # noqa: B018  # an error about the model is not about a law
    if not jax.tree.leaves(parameters(model)):
        raise InputError(
            "`model` must have floating-point or complex arrays, but is "
            f"{briefly(model)}."
        )
    check(trial, [name for name in asked if name not in skipped])


def names(argument: str, given: str | Collection[str]) -> tuple[str, ...]:
    """The names of laws in an argument; raises a `ValueError` if one does not exist."""
    found = (given,) if isinstance(given, str) else tuple(given)
    for name in found:
        if name not in BY_NAME:
            problem = f"`{argument}` has {name!r}, which is not the name of a law."
            raise InputError(f"{problem} The laws are {', '.join(LAWS)}.")
    return found


def check(trial: Trial, asked: Collection[str]) -> None:
    """Raises a `LawError` if the trial breaks any of these laws."""
    broken: dict[str, str] = {}
    cause, owner = None, type(trial.opt).__name__
    for name in asked:
        law = BY_NAME[name]
        try:
            law.check(trial)
        except Breach as breach:
            broken[name] = f"{breach}; {breach.fix or law.fix}"
        except Exception as error:
            cause = cause or error
            first = str(error).strip().partition("\n")[0].rstrip(".")
            raised = f"it raised {type(error).__name__} ({first})"
            # The steps that most laws look at: it is not about this law.
            fix = _ANY_STEP if error is trial.outcome else law.fix
            same = [x for x, text in broken.items() if text.startswith(raised)]
            fix = f"see `{same[0]}`" if same else fix
            broken[name] = f"{raised}, expected no error; {fix}"
    if broken:
        sentences = {
            name: f"{owner} breaks the law `{name}`: {text}."
            for name, text in broken.items()
        }
        message = "\n".join(sentences.values())
        if len(broken) > 1:
            message = f"{owner} breaks {len(broken)} of {len(asked)} laws.\n{message}"
        failure = LawError(message)
        failure.broken = sentences
        raise failure from cause
