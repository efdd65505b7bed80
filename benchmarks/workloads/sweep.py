"""Measures many cells, in processes with one core each."""

import multiprocessing
import os
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
    """An optimizer on a workload. It does not start after `end` (monotonic clock)."""

    name: str
    workload: str
    end: float


def sweep(jobs: list[Job], processes: int) -> None:
    """Runs all jobs. Results are saved immediately, so a killed sweep can be resumed."""
    # Each process has one thread: two would share caches and disturb the times. Threads
    # of LAPACK, which factorizes matrices, use busy waiting.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context)
    with pool, tqdm(total=len(jobs), file=sys.stderr) as bar:
        for done in as_completed([pool.submit(run, job) for job in jobs]):
            result = done.result()
            if result is not None:
                add(*result)
            bar.update()


def run(job: Job) -> tuple[str, Cell | Failure] | None:
    """The name of the workload and the result, or `None` if it is too late to start."""
    if time.monotonic() > job.end:
        return None
    method, workload = METHODS[job.name], WORKLOADS[job.workload]()
    try:
        return job.workload, measure(method, workload)
    except Exception as error:
        # This is also a result: the page lists the optimizers that do not run, and why.
        what = f"{type(error).__name__}: {error}"
        return job.workload, Failure(job.name, what[:300])
    finally:
        jax.clear_caches()  # otherwise, all compiled programs stay in memory
