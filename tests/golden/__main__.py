"""Records golden numbers: python -m tests.golden [backend ...]. Look at what changed before you commit."""

import json
import sys
from pathlib import Path

from tests.golden.numbers import BACKENDS

if __name__ == "__main__":
    for name in sys.argv[1:] or BACKENDS:
        path = Path(__file__).parent / f"{name}.json"
        path.write_text(json.dumps(BACKENDS[name](), indent=1) + "\n", "utf-8")
        print(f"recorded {path}")
