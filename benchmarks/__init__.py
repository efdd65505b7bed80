"""Measures the same work in eqopt and in Optax, in one run: `python -m benchmarks`.

To add a benchmark, add a row to `cases.py`. For a new kind of work, also add a function
to `measures.py`.
"""

import importlib.util


for _needed in ("eqopt", "optax"):
    if importlib.util.find_spec(_needed) is None:
        raise SystemExit(
            f"benchmarks: {_needed} is not installed; run: pip install -e '.[tests]'"
        )
