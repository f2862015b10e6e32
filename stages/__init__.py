"""One runnable file per stage: reads tables, calls the packages, writes tables."""

import os

# Torch's waiting CPU threads spin by default, which beside any other process costs ten times the work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
