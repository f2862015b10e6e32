"""What stages do once their plan stands: loaded by the runner then, and by nothing else."""
