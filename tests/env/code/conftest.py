import sys

import pytest

from env.code import judge
from env.sandbox import Limits, Sandbox, shared_sandbox


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    """The sandbox of this process; it ends with it."""
    if sys.platform != "linux":
        pytest.skip("confinement needs Linux")
    return shared_sandbox()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives solutions and test programs less time and memory than they have in a run."""
    monkeypatch.setattr(judge, "LIMITS", Limits(seconds=0.5, memory_mb=256, output_bytes=2**20))
