"""What steps cost on an H100 and on a TPU, compiled on a machine that has neither.

`figures.json` has the bytes that steps move, their temporary memory and their kernels.
The tests compile the steps again and compare.

- `python -m tests.compiled h100 AdamW` prints the figures of a row;
- `python -m tests.compiled h100 --write` writes the figures of all rows; also for `tpu`.
"""
