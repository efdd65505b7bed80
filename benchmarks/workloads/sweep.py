"""Many cells, in processes with a core each."""

import multiprocessing
import os
import pathlib
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

import jax
from tests.methods import METHODS
from tqdm import tqdm

from .classifying import digits, tumours
from .language import factorisation, transformer
from .physics import heat
from .protocol import Cell, measure
from .regression import bottleneck, diabetes
from .results import Failure, add


WORKLOADS = {
    "digits": digits,
    "language": transformer,
    "tumours": tumours,
    "diabetes": diabetes,
    "autoencoder": bottleneck,
    "heat": heat,
    "embeddings": factorisation,
}


class Job(NamedTuple):
    """An optimizer on a workload, not to be begun after `end` of the monotonic clock."""

    name: str
    workload: str
    at_once: int
    end: float


def sweep(jobs: list[Job], processes: int, folder: pathlib.Path) -> None:
    """What has ended is on disk at once, so a sweep that is killed can go on."""
    # One thread each: two would share the caches, and disturb each other's times. Those
    # of LAPACK, which factorises matrices, wait for each other by running in circles.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context)
    with pool, tqdm(total=len(jobs), file=sys.stderr) as bar:
        for done in as_completed([pool.submit(run, job) for job in jobs]):
            result = done.result()
            if result is not None:
                add(*result, folder)
            bar.update()


def run(job: Job) -> tuple[str, Cell | Failure] | None:
    """The workload's name and the result, or nothing if it is too late to begin."""
    if time.monotonic() > job.end:
        return None
    method, workload = METHODS[job.name], WORKLOADS[job.workload]()
    try:
        return job.workload, measure(method, workload, job.at_once)
    except Exception as error:
        # A result, too: the page says which optimizers do not run, and why.
        what = f"{type(error).__name__}: {error}"
        return job.workload, Failure(job.name, what[:300])
    finally:
        jax.clear_caches()  # or all compiled programs stay in memory
