"""`vdapo`: the commands that look at runs."""
