"""The first thing a new user runs, run as they run it: real digits, fewer steps."""

import re
from pathlib import Path

import pytest
from matplotlib.image import imread
from tests.docs.site import module


SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "train_digits.py"
SMALL = ("--steps", "9", "--batch-size", "16", "--checkpoint-every", "4", "--quiet")


def load_script():
    return module("examples/train_digits.py")


@pytest.fixture(scope="module")
def script():
    return load_script()


@pytest.fixture(scope="module")
def finished(script, tmp_path_factory):
    """The output directory of a small run; not to be changed."""
    output = tmp_path_factory.mktemp("finished")
    script.main([*SMALL, "--output", str(output)])
    return output


def parse(script, *options):
    options = script.make_parser().parse_args(options)
    options.learning_rate = script.OPTIMIZERS[options.optimizer][1]
    return options


def assert_refused(script, capsys, options, expected):
    """One line on stderr that says why, no traceback, status 2."""
    with pytest.raises(SystemExit) as stopped:
        script.main(options)
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert out == ""
    assert err.count("\n") == 1 and err.endswith("\n")
    assert expected in err


#
# The whole of it
#


@pytest.mark.slow
def test_reads_97_percent_with_the_defaults(script, tmp_path, capsys):
    script.main(["--quiet", "--output", str(tmp_path)])
    out, err = capsys.readouterr()
    *_, picture, last = out.splitlines()
    match = re.fullmatch(r"test accuracy: (\d+\.\d\d) %", last)
    assert match is not None and float(match[1]) >= 97
    assert err == ""
    pixels = imread(picture.removeprefix("picture: "))
    assert min(pixels.shape[:2]) > 500


#
# Data
#


#
# Training
#


#
# Resuming
#


def interrupt_at_first_checkpoint(script, monkeypatch, options):
    save = script.save_checkpoint

    def save_and_interrupt(*args):
        save(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(script, "save_checkpoint", save_and_interrupt)
        with pytest.raises(SystemExit) as stopped:
            script.main(options)
    assert stopped.value.code == 130


def is_same_checkpoint(left, right):
    """Options and history, parameters and state: all of it, to the bit."""
    # Not asserted here: pytest would look for hours for how the bytes differ.
    name = "checkpoint.eqx"
    return (left / name).read_bytes() == (right / name).read_bytes()


@pytest.mark.slow
def test_resumes_bit_identically(script, finished, tmp_path, monkeypatch, capsys):
    options = [*SMALL, "--output", str(tmp_path)]
    interrupt_at_first_checkpoint(script, monkeypatch, options)
    out, err = capsys.readouterr()
    assert out == "" and "--resume" in err
    assert not is_same_checkpoint(tmp_path, finished)
    script.main([*options, "--resume"])
    assert is_same_checkpoint(tmp_path, finished)
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.slow
def test_resuming_with_other_options(script, finished, capsys):
    before = (finished / "checkpoint.eqx").read_bytes()
    options = [*SMALL, "--output", str(finished), "--optimizer", "sgd", "--resume"]
    expected = "other options: optimizer=adam, learning_rate=0.003\n"
    assert_refused(script, capsys, options, expected)
    assert (finished / "checkpoint.eqx").read_bytes() == before


#
# Wrong options
#


@pytest.mark.parametrize(
    "options, expected",
    [
        ("--optimizer adma", "invalid choice: 'adma'"),
        ("--steps 0", "--steps: expected int from 1"),
        ("--batch-size 1258", "there are 1257 training digits"),
        ("--resume", "there is no checkpoint"),
    ],
)
def test_wrong_options(script, tmp_path, capsys, options, expected):
    output = tmp_path / "output"
    options = ["--quiet", "--output", str(output), *options.split()]
    assert_refused(script, capsys, options, expected)
    assert not output.exists()
