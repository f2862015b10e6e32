import sys

import pytest

from env.sandbox import Sandbox, shared_sandbox


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    """The sandbox of this process; it ends with it."""
    if sys.platform != "linux":
        pytest.skip("confinement needs Linux")
    return shared_sandbox()
