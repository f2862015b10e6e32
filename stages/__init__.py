"""One runnable file per stage: reads tables, calls the packages, writes tables."""

import os

# Torch's waiting CPU threads spin by default, which beside any other process costs ten times the work. To
# sleep at once costs a quarter of the speed on a quiet machine: most waits of a small model end sooner.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
