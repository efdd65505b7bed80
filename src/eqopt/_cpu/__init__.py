"""Code that is only compiled for a CPU. Accelerators run the equations as written."""
