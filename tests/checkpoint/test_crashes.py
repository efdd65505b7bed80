"""A training that is killed again and again ends as if it had never been killed."""

import functools
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import pytest

from eqopt.checkpoint import CheckpointError, load, read_metadata


pytestmark = pytest.mark.slow


PROGRAM = Path(__file__).parents[2] / "docs" / "examples" / "train_through_crashes.py"
SLOW_DISK = Path(__file__).with_name("slow_disk.py")
PATIENCE = 60  # seconds, in which something has to happen


class Trainer:
    """The example in its own directory, with its checkpoints and its output."""

    complete = 0  # how many bytes a checkpoint has

    def __init__(self, directory, steps, cache):
        self.checkpoint = directory / "run.eqx"
        self.unfinished = directory / "run.eqx.tmp"
        self.output = directory / "output"
        self.arguments = [str(PROGRAM), "--steps", str(steps), "--checkpoint"]
        self.arguments += [str(self.checkpoint)]
        self.environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    def start(self, *before):
        """Starts the program with the command `before`, such as `python`."""
        with self.output.open("w") as output:
            return subprocess.Popen(
                [*before, *self.arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
            )

    def finish(self):
        process = self.start(sys.executable)
        assert process.wait(PATIENCE) == 0, self.output.read_text()
        return self.checkpoint.read_bytes()

    def saved_steps(self):
        """How many steps the checkpoint has behind it, which must be a whole one."""
        if not self.checkpoint.exists():
            return 0
        return int(load(self.checkpoint, like()).step)

    def is_saving(self):
        """Whether a part of a checkpoint, and no more, has got to the file."""
        return 0 < size(self.unfinished) < self.complete


@functools.cache
def like():
    """A tree like the example's checkpoints."""
    example = runpy.run_path(str(PROGRAM))
    opt = example["make_optimizer"](100)
    return eqx.filter_eval_shape(lambda: example["start"](opt))


def size(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def wait_until(happened, process):
    end = time.monotonic() + PATIENCE
    while not happened():
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < end
        time.sleep(0.001)


def while_starting(trainer, process, rng):
    time.sleep(rng.uniform(0, 1.2))


def anywhere(trainer, process, rng):
    # After the first save has begun: before, each kill would only lead back to the
    # start.
    trainer.unfinished.unlink(missing_ok=True)
    wait_until(trainer.unfinished.exists, process)
    time.sleep(rng.uniform(0, 0.3))


def while_saving(trainer, process, rng):
    anywhere(trainer, process, rng)
    while True:
        wait_until(trainer.is_saving, process)
        process.send_signal(signal.SIGSTOP)  # it cannot finish while we look
        os.waitpid(process.pid, os.WUNTRACED)
        if trainer.is_saving():
            return
        process.send_signal(signal.SIGCONT)


def kill(trainer, moment, rng):
    """Starts it and kills it, in the middle of whatever it does."""
    before = trainer.saved_steps()
    process = trainer.start(sys.executable, SLOW_DISK, "0.002")
    moment(trainer, process, rng)
    assert process.poll() is None, "it ended by itself"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    if moment is while_saving:
        assert trainer.is_saving()
        with pytest.raises(CheckpointError, match="damaged"):
            read_metadata(trainer.unfinished)
    said = trainer.output.read_text()
    first = f"goes on after {before} steps\n" if before else "starts\n"
    assert said in ("", first)
    # Nothing is lost but what came after the last save, and no step counts twice.
    after = trainer.saved_steps()
    assert after >= before and after % 10 == 0


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of compiled programs, which saves each process a second."""
    return tmp_path_factory.mktemp("cache")


def test_killed_3_times(tmp_path_factory, cache):
    undisturbed, trainer = (
        Trainer(tmp_path_factory.mktemp(name), 1200, cache)
        for name in ("whole", "killed")
    )
    expected = undisturbed.finish()
    rng, trainer.complete = random.Random(0), len(expected)
    for moment in (while_saving, anywhere, while_starting):
        kill(trainer, moment, rng)
    reached = trainer.saved_steps()
    assert reached > 0
    # Not asserted in one: pytest would look for hours for how the bytes differ.
    is_same = trainer.finish() == expected
    assert is_same
    assert trainer.output.read_text().startswith(f"goes on after {reached} steps\n")
    assert sorted(os.listdir(trainer.output.parent)) == ["output", "run.eqx"]
