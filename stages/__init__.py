"""One runnable file per stage: reads tables, calls the packages, writes tables."""

import os

# Waiting threads of torch's CPU kernels spin by default; beside any other process that costs ten times the work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
