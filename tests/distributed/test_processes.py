"""Really several processes, on loopback: they come to what one process comes to."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from .restart import common_step
from .worker import TRAINED
from .workers import METHODS


ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 240  # for all processes of one run together
FILE = "results.npz"


def run(
    processes: int, folder: pathlib.Path, module: str = "worker"
) -> dict[str, np.ndarray]:
    """Starts that many processes, waits for all of them, and leaves none behind."""
    with started(processes, folder, module) as (all_of_them, outputs):
        ended = lambda: all(one.poll() is not None for one in all_of_them)
        wait_until(ended, all_of_them, outputs)
        assert all(one.returncode == 0 for one in all_of_them), report(outputs)
    with np.load(folder / FILE) as results:
        return dict(results)


def wait_until(condition, processes, outputs) -> None:
    """Waits, unless a process fails: the others would wait for it."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        failed = any(process.poll() not in (None, 0) for process in processes)
        assert not failed and time.monotonic() < deadline, report(outputs)
        time.sleep(0.02)


@contextlib.contextmanager
def started(
    processes: int, folder: pathlib.Path, module: str
) -> Iterator[tuple[list[subprocess.Popen], list[pathlib.Path]]]:
    """The processes, and the files with what they print. All of them end with it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    folder.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        # Small programs are the same in all of them.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    outputs = [folder / f"{rank}.txt" for rank in range(processes)]
    found = []
    try:
        for rank, output in enumerate(outputs):
            command = [sys.executable, "-m", f"tests.distributed.{module}"]
            command += [address, str(processes), str(rank), str(folder / FILE)]
            with output.open("w") as log:
                found.append(
                    subprocess.Popen(
                        command, cwd=ROOT, env=environment, stdout=log, stderr=log
                    )
                )
        yield found, outputs
    finally:
        for process in found:
            process.kill()
            process.wait()


def report(outputs: list[pathlib.Path]) -> str:
    return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in outputs)


@pytest.mark.slow
def test_two_processes_train_as_one_does(tmp_path):
    one_process, results = (run(n, tmp_path / str(n)) for n in (1, 2))
    for name in (*TRAINED, *METHODS):
        losses = results[f"{name}/losses"]
        assert losses[-1] < losses[0]
        for key in ("losses", "params"):
            np.testing.assert_allclose(
                results[f"{name}/{key}"],
                one_process[f"{name}/{key}"],
                rtol=1e-4,
                atol=1e-5,
            )
    # Counts are on every process.
    assert results["data parallel/share"] == 1
    for name in ("ZeRO-1", "fully sharded (FSDP)"):
        assert results[f"{name}/share"] == pytest.approx(1 / 2, rel=0.02)


@pytest.mark.slow
def test_a_killed_worker_comes_back(tmp_path):
    """With its file, or with the outer parameters from the file of the other worker."""
    folder = tmp_path / "run"
    with started(2, folder, "restart") as (processes, outputs):

        def is_there():
            assert all(one.poll() is None for one in processes), report(outputs)
            return common_step(folder, 2) >= 4

        wait_until(is_there, processes, outputs)
        processes[1].send_signal(signal.SIGKILL)
        assert processes[1].wait() == -signal.SIGKILL
    results = run(2, folder, "restart")
    for how in ("", ", lost"):
        np.testing.assert_array_equal(results[f"found{how}"], results[f"expected{how}"])
    # They continue from the same parameters, which change; the lost state matters.
    whole, lost = results["found"], results["found, lost"]
    np.testing.assert_array_equal(whole[0], lost[0])
    assert np.isfinite(lost).all() and not np.array_equal(whole[0], whole[-1])
    assert not np.array_equal(whole[-1], lost[-1])
