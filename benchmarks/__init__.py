"""Scripts behind every figure in the docs; each is run as `python -m benchmarks.NAME`."""
