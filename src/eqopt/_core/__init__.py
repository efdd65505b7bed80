"""The engine: from the maths of one leaf to a transformation of a whole model.

In this order: `equation.py` holds the maths of one leaf, `kernel.py` compiles the
equations of a leaf into one function, `run.py` calls it for each leaf, `stages.py` lays
trees out for that, `pipeline.py` collects the equations of a step, and
`transformation.py` is the protocol. What is special about matrices is in
`on_matrices.py` and `matrixwise.py`.
"""
