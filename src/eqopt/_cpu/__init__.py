"""The order in which a CPU computes, and a TPU stores slots. A GPU needs no order."""
