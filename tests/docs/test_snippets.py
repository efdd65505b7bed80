"""Every piece of Python in the documentation runs, and its `assert`s hold.

The blocks of one page run in order and share their names. Only blocks that open with
```` ```{.python .no-run} ```` are skipped. A block with `.needs-flax` instead of
`.no-run` is run by a slow test, if that package is installed. A block that opens with
```` ```py ```` shows lines of a script, which `tests/examples` runs.
"""

import contextlib
import re
import types

import jax
import pytest

from .pages import PAGES, ROOT, Block, blocks, name


def is_run(block: Block) -> bool:
    return bool(re.match(r"python\b|\{ ?\.python\b", block.info)) and (
        ".no-run" not in block.info
    )


def needs(block: Block) -> list[str]:
    return re.findall(r"\.needs-(\w+)", block.info)


SNIPPETS = {
    name(page): [block for block in blocks(page) if is_run(block)]
    for page in [ROOT / "README.md", *PAGES]
}
OPTIONAL = {
    page: packages
    for page, found in SNIPPETS.items()
    if (packages := {package for block in found for package in needs(block)})
}
WITH_TORCH = [page for page, packages in OPTIONAL.items() if "torch" in packages]


# The pages that users read first. The other pages are slow tests. Those with snippets for
# optional packages run as a whole below. (Not for torch, which is not always there.)
FIRST = {"README.md", "docs/index.md", "docs/getting_started.md"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page in FIRST else pytest.mark.slow)
        for page, found in SNIPPETS.items()
        if found and (page not in OPTIONAL or page in {*FIRST, *WITH_TORCH})
    ],
)
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _run(page, [block for block in SNIPPETS[page] if not needs(block)])


def test_the_readme_trains_first_and_tests_second():
    """`.ci/run` finds each command by its number, and gives each an environment."""
    code = [block.code for block in blocks(ROOT / "README.md") if block.info == "bash"]
    train, check, *_ = [text.strip() for text in code]
    install = r"python -m pip install (-e )?'\.\[(\w+)\]' && python "
    assert re.fullmatch(install + r"docs/examples/train_digits\.py", train)
    assert re.fullmatch(install + r"-m pytest -n auto", check)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of others, about others
@pytest.mark.parametrize("page", [page for page in OPTIONAL if page not in WITH_TORCH])
def test_snippets_with_optional_packages_run(page, tmp_path, monkeypatch):
    for package in OPTIONAL[page]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    _run(page, SNIPPETS[page])


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_TORCH)
def test_snippets_with_torch_run(page, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    _run(page, SNIPPETS[page])


def _run(page: str, found: list[Block]) -> None:
    # A module, so that what the page defines says where it comes from.
    module = types.ModuleType("snippets")
    with _as_optax_needs_it(found):
        for block in found:
            # Blank lines in front, and a traceback has the line numbers of the page.
            source = "\n" * (block.line - 1) + block.code
            exec(compile(source, ROOT / page, "exec"), vars(module))


def _as_optax_needs_it(found: list[Block]) -> contextlib.AbstractContextManager:
    # Optax relies on implicit promotion; all other code must work without it.
    stack = contextlib.ExitStack()
    if any(re.search(r"^\s*(import|from) optax\b", b.code, re.M) for b in found):
        stack.enter_context(jax.numpy_dtype_promotion("standard"))
        stack.enter_context(jax.numpy_rank_promotion("allow"))
    return stack


def test_few_blocks_are_skipped():
    left_out = [
        f"{page.name}:{block.line}"
        for page in PAGES
        for block in blocks(page)
        if "no-run" in block.info
    ]
    assert len(left_out) <= 2, left_out
