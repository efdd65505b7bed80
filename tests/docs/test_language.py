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
