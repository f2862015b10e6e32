"""One runnable file per stage: reads tables, calls the packages, writes tables."""

import os
import re
import sys

from pipeline.artifacts.signals import end_while_loading

# Torch's waiting CPU threads spin by default, which beside any other process costs ten times the work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# While `python -m` looks for its module, argv says so. A stage loads for seconds; workers, tools end as ever.
if sys.argv[:1] == ["-m"] and any(re.fullmatch(r"stages\.(?!command$)\w+", word) for word in sys.orig_argv):
    end_while_loading()
