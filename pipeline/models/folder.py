"""A model folder in Hugging Face form: cheap checks, before a plan fixes which folder it is."""

import hashlib
import json
from pathlib import Path

from safetensors import safe_open

from pipeline.errors import ArtifactError

FILE_SIZE = "2GB"
"""Of a file of weights at most, unless one tensor is larger: threads read and verify files side by side."""


def check_policy_folder(folder: Path) -> None:
    """Raises ArtifactError if a folder can hold no policy: cheap checks before torch is imported."""
    config = folder / "config.json"
    if not config.is_file():
        missing = "config.json is missing" if folder.is_dir() else "there is no such folder"
        raise ArtifactError(f"no policy in {folder}: {missing}. Name a folder in Hugging Face format")
    try:
        names = [str(name) for name in json.loads(config.read_text("utf-8")).get("architectures") or []]
    except (ValueError, AttributeError, TypeError) as error:
        raise ArtifactError(f"{config} is not a JSON object with a list of architectures: {error}") from error
    if not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        raise ArtifactError(
            f"the model in {folder} is {names or 'of no architecture'}, not a causal language model "
            "(...ForCausalLM). Name another folder"
        )
    check_weights(folder)
    if not (folder / "tokenizer.json").is_file():
        raise ArtifactError(
            f"no tokenizer in {folder}: tokenizer.json is missing. Save the tokenizer beside the model"
        )


def weight_files(folder: Path) -> list[Path]:
    """Returns the files that hold a model's weights: those of its index, else model.safetensors, else all.

    A base may hold its weights twice, the second time in a form that transformers does not read (Mistral's
    consolidated.safetensors). Raises ArtifactError for an index that is damaged, or stands beside one file.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if not index.is_file():
        return [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    try:
        names = {str(name) for name in json.loads(index.read_text("utf-8"))["weight_map"].values()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ArtifactError(f"{index} is damaged: {error!r}. Export the model again") from error
    if single.is_file() and single.name not in names:  # transformers would read the one, vLLM the other
        raise ArtifactError(f"{folder} has both {single.name} and {index.name} of others. Remove one of them")
    if strange := sorted(name for name in names if Path(name).name != name):
        raise ArtifactError(
            f"{index} names {strange[0]!r}, which is no file beside it. Export the model again"
        )
    return [folder / name for name in sorted(names)]


def content_files(folder: Path) -> list[Path]:
    """Returns the files that decide what a model folder holds; none of a folder that is not there.

    They are in the key of a stage that a setting gives the folder to: weights may be replaced in place.
    """
    return sorted(p for p in folder.glob("*") if p.suffix in (".json", ".safetensors") and p.is_file())


def check_weights(folder: Path) -> None:
    """Raises ArtifactError unless a model folder has weights in readable files; reads their headers alone."""
    paths = weight_files(folder)
    if not paths:
        raise ArtifactError(f"no weights in {folder}: no *.safetensors file. Export the model again")
    holder: dict[str, Path] = {}
    for path in paths:
        try:
            with safe_open(path, "numpy") as file:
                names = list(file.keys())
        except Exception as error:  # OSError, or a kind of its own
            raise ArtifactError(
                f"the weights in {path} are not readable: {error}. Export the model again, or name another"
            ) from None
        if twice := [name for name in names if name in holder]:
            raise ArtifactError(
                f"{holder[twice[0]]} and {path} both hold {twice[0]}, so which one counts is not known. "
                "Remove one of the files, or export the model again"
            )
        holder |= dict.fromkeys(names, path)


def digest_of_tokenizer(text: str) -> str:
    """Returns the SHA-256 of a fast tokenizer's vocabulary, merges and rules, without its padding state.

    `text` is what `tokenizers` writes of it: the content of tokenizer.json.
    """
    content = json.loads(text)
    content.pop("padding", None)
    content.pop("truncation", None)
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
