"""The cost of a step on accelerators: `python -m benchmarks.accelerators h100`.

A step is compiled for an accelerator that need not exist on this machine, and the program
says what it moves and allocates. With `--run`, steps run on an accelerator that does.
"""
