"""Programs: a policy writes a Python function, and tests that it never meets say what it is worth."""
