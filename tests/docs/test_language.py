"""Documentation and comments are plain English: CONTRIBUTING.md has the rules."""

from .language import files, findings
from .pages import ROOT


def test_no_phrase_that_is_avoided():
    found = [
        str(finding)
        for file in files()
        for finding in findings(
            str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
        )
    ]
    assert not found, "\n".join(["", *found])


def phrases(name: str, text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.phrase) for finding in findings(name, text)]


def test_found_in_docstrings_and_comments():
    text = 'def f(x):\n    """That of `x`."""\n    return x  # likewise\n'
    assert phrases("a.py", text) == [(2, "That of"), (3, "likewise")]
    text = "# It is there\n# in the\n# place of x.\n"
    assert phrases("a.py", text) == [(2, "in the place of")]


def test_a_reference_may_end_a_list_of_arguments():
    assert not phrases("a.md", "- The others are those of [`eqopt.X`][].\n")
    assert phrases("a.md", "The norms are those of [`eqopt.X`][].\n")
