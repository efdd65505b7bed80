"""What is compiled for a CPU alone. On an accelerator, equations are as written."""
