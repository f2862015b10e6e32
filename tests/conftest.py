"""What tests of several folders share."""

import os
from pathlib import Path

import pytest

# Before torch loads: `make test` gives every core a worker.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SmolLM2-135M-Instruct in Hugging Face format; read only."""
    from tests.real_model.smollm2 import REASON, convert, gguf_file

    file = gguf_file()
    if file is None:
        pytest.skip(REASON)
    folder = tmp_path_factory.mktemp("smollm2")
    convert(file, folder)
    return folder
