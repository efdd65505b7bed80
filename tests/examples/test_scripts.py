"""Scripts that measure and draw, run in small as a reader runs them, and pictures."""

import re
import runpy

import pytest
from matplotlib.image import imread
from tests.docs.pages import DOCS

from eqopt.transfer import Plan


def is_transfer(found):
    return len(found) == 6 and all(0 < float(loss) < 8 for loss in found)


def is_width_transfer(found):
    of_base, of_base_without, of_wide, of_wide_without = found
    return (
        of_base == of_base_without  # all factors are 1
        and of_wide != of_wide_without
        and all(float(loss) < 6.5 and 0 < float(rate) < 0.3 for loss, rate in found)
    )


def is_half_precision(found):
    (of_full, full), (of_split, split), (of_half, _) = found
    # Biases and norms, a hundredth of all, have moments in float32 in any case.
    return (
        (of_full, of_split, of_half) == ("16.0", "8.1", "8.0")
        and float(full) < 5  # of 7 bits
        and float(split) == pytest.approx(float(full), rel=0.01)
    )


def is_private(found):
    (first, _), (second, private), _, (infinite, plain) = found
    # The accountant's results for 20 and 40 steps, q = 256 / 1347 and sigma = 3.
    is_spent = 0.9 < float(first) < float(second) < 1.6 and infinite == "inf"
    return is_spent and float(private) > 75 and float(plain) > 95


# By script: its options, a pattern in what it prints, and what must be true of all finds.
SCRIPTS = {
    "draw_transfer": (
        "--shrink 32 --seeds 1 --quiet",
        r"(?m)^(\S+) bits per byte: ",
        is_transfer,
    ),
    "draw_width_transfer": (
        "--steps 8 --widths 16 32 --seeds 1 --quiet",
        r"(\S+) bits per byte at (\S+)",
        is_width_transfer,
    ),
    "half_precision": (
        "--steps 12 --learning-rate 0.01 --quiet",
        r"(\S+) bytes per parameter, (\S+) bits per byte",
        is_half_precision,
    ),
    "train_privately": (
        "--steps 40 --report-every 20",
        r"epsilon +(\S+) +test accuracy (\S+) %",
        is_private,
    ),
}
# What no option of a script makes smaller.
SMALLER = {
    "draw_transfer": {"LARGE": Plan(tokens=2**18, batch_tokens=512, width=32)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.usefixtures("standard_promotion")
def test_it_finds_and_draws(name, tmp_path, capsys):
    options, pattern, is_right = SCRIPTS[name]
    script, output = DOCS / "examples" / f"{name}.py", tmp_path / "picture.png"
    main = runpy.run_path(str(script))["main"]
    main.__globals__.update(SMALLER.get(name, {}))
    main([*options.split(), "--output", str(output)])
    printed, warned = capsys.readouterr()
    assert "--quiet" not in options or not warned, warned
    assert is_right(re.findall(pattern, printed)), printed
    assert min(imread(output).shape[:2]) > 400


def test_the_page_on_larger_runs_has_the_numbers_of_its_picture():
    shown = (DOCS / "images" / "transfer.svg").read_text(encoding="utf-8")
    page = (DOCS / "larger_runs.md").read_text(encoding="utf-8")
    losses = re.findall(r"<!-- (\d\.\d{3}) -->", shown)
    assert len(losses) == 6
    assert all(loss in page for loss in losses)
    [(exponent, error)] = re.findall(r"<!-- exponent (\S+) ± (\S+) -->", shown)
    assert f"{exponent} ± {error}" in page


WIDTHS = "width 16", "width 128", "with eqopt.groups.mup", "without", "learning rate"
HALVES = "bytes per parameter", "gradients", "bfloat16 alone: ", "8-bit state: "


@pytest.mark.parametrize(
    ("picture", "texts"), [("width_transfer", WIDTHS), ("half_precision", HALVES)]
)
def test_pictures_show(picture, texts):
    shown = (DOCS / "images" / f"{picture}.svg").read_text()
    assert all(re.search(f"<!-- .*{text}.*-->", shown) for text in texts)
