"""What constructors and calls accept, and what they say about anything else."""
