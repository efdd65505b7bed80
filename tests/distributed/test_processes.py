"""Really several processes, on loopback: they come to what one process comes to."""

import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from .worker import TRAINED


ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 240  # for all processes of one run together


def run(processes: int, folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Starts that many processes, waits for all of them, and leaves none behind."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    folder.mkdir()
    file = folder / "results.npz"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        # Small programs are the same in all of them.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    outputs = [folder / f"{rank}.txt" for rank in range(processes)]
    started = []
    try:
        for rank, output in enumerate(outputs):
            command = [sys.executable, "-m", "tests.distributed.worker"]
            command += [address, str(processes), str(rank), str(file)]
            with output.open("w") as log:
                started.append(
                    subprocess.Popen(
                        command, cwd=ROOT, env=environment, stdout=log, stderr=log
                    )
                )
        deadline = time.monotonic() + SECONDS
        while any(process.poll() is None for process in started):
            # If one fails, the others would wait for it.
            failed = any(process.poll() not in (None, 0) for process in started)
            assert not failed and time.monotonic() < deadline, report(outputs)
            time.sleep(0.1)
        assert all(process.returncode == 0 for process in started), report(outputs)
    finally:
        for process in started:
            process.kill()
            process.wait()
    with np.load(file) as results:
        return dict(results)


def report(outputs: list[pathlib.Path]) -> str:
    return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in outputs)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    return run(1, tmp_path_factory.mktemp("one") / "run")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_train_as_one_does(processes, one_process, tmp_path):
    results = run(processes, tmp_path / "run")
    for name in TRAINED:
        losses = results[f"{name}/losses"]
        assert losses[-1] < losses[0]
        for key in ("losses", "params"):
            np.testing.assert_allclose(
                results[f"{name}/{key}"],
                one_process[f"{name}/{key}"],
                rtol=1e-4,
                atol=1e-5,
            )
    # Counts, and norms that 4 does not divide, are on every process.
    assert results["data parallel/share"] == 1
    for name in ("ZeRO-1", "fully sharded (FSDP)"):
        assert results[f"{name}/share"] == pytest.approx(1 / processes, rel=0.02)


@pytest.mark.slow
def test_a_failure_ends_all(tmp_path, monkeypatch):
    """A process that ends early takes the run with it, in bounded time."""
    monkeypatch.setitem(os.environ, "JAX_ENABLE_X64", "not a bool")
    with pytest.raises(AssertionError, match="not a bool"):
        run(2, tmp_path / "run")
