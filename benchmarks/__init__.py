"""The same work in eqopt and in Optax, in one run: `python -m benchmarks`.

To add a benchmark, add a row to `cases.py`, and to `measures.py` a function if it is a
new kind of work.
"""

import importlib.util


for _needed in ("eqopt", "optax"):
    if importlib.util.find_spec(_needed) is None:
        raise SystemExit(
            f"benchmarks: {_needed} is not installed; run: pip install -e '.[tests]'"
        )
