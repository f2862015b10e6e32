"""Policies: folders in Hugging Face form, read, written, checked and digested."""

import hashlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers.initialization import no_init_weights
from transformers.utils.logging import disable_progress_bar

from pipeline.errors import ArtifactError
from pipeline.models.folder import FILE_SIZE, check_policy_folder, digest_of_tokenizer, weight_files
from pipeline.processes.shared_weights import Files
from pipeline.processes.threads import in_threads

_loaded = sys.modules.get("sklearn")
sys.modules["sklearn"] = None  # type: ignore[assignment]
try:  # else transformers takes a second to load it and pandas for a generation that nobody asks for
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
finally:
    sys.modules.pop("sklearn")
    if _loaded is not None:
        sys.modules["sklearn"] = _loaded

PIECE_BYTES = 2**26
"""That one thread digests at a time; part of what a policy's digest means."""


@dataclass(frozen=True)
class Policy:
    """A causal language model with its tokenizer, and the digests of both."""

    folder: Path
    config: Any  # transformers' configuration of the model
    tokenizer: Any  # a fast one
    policy_digest: str
    tokenizer_digest: str

    @cached_property
    def model(self) -> Any:
        """The transformers causal LM, fp32, in eval mode; read when first asked for, 4 bytes a parameter."""
        return _load_model(self.folder)

    @cached_property
    def files(self) -> Files | None:
        """File and stored name of each weight; None where transformers alone can read them."""
        return _weights_in_files(self.folder, self.config)

    def unread(self) -> Any:
        """Returns `model` with weights that nobody has read, nor written to: they take no memory."""
        with no_init_weights():
            model = AutoModelForCausalLM.from_config(self.config, dtype=torch.float32)
        model.tie_weights()  # which is left out there, as initialisation is
        return model.eval()


def save_policy(model: Any, tokenizer: Any, folder: Path) -> None:
    """Writes config, safetensors and tokenizer, as `AutoModelForCausalLM.from_pretrained` reads them."""
    disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size=FILE_SIZE)
    tokenizer.save_pretrained(folder)


def save_for_serving(tokenizer: Any, folder: Path, *, stop_token: str, chat_template: str) -> None:
    """Writes what a server needs beside exported weights: tokenizer, chat template, generation config.

    Messages end with the stop token and are sampled as in training, at temperature 1 with every token kept;
    a base's own defaults, or transformers' top_k of 50, would be another policy.
    """
    served = copy(tokenizer)
    served.chat_template = chat_template
    served.save_pretrained(folder)
    # A base's own templates by name, which transformers prefers for prompts with tools.
    shutil.rmtree(folder / "additional_chat_templates", ignore_errors=True)
    GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        eos_token_id=tokenizer.convert_tokens_to_ids(stop_token),
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder)


def load_policy(folder: Path) -> Policy:
    """Returns the policy in a folder; never looks on the network.

    Its model is read when somebody asks for it. An engine or trainer in processes of its own needs none here,
    and 8 billion parameters take 33 GB. Raises ArtifactError, which says what is missing or damaged.
    """
    check_policy_folder(folder)
    with _policy_readable(folder):
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        stored = _weights_in_files(folder, config)
    if stored is None:  # transformers says what is wrong, or knows how to read such files
        digest = weights_digest(_load_model(folder).state_dict())
    else:  # out here: no memory left, say, is not a damaged policy
        digest = _digest((name, _stored_weight(*stored[name])) for name in sorted(stored))
    return Policy(folder, config, tokenizer, digest, tokenizer_digest(tokenizer))


def _load_model(folder: Path) -> Any:
    disable_progress_bar()
    with _policy_readable(folder):
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    missing = sorted(info["missing_keys"]) + [str(key) for key in info["mismatched_keys"]]
    if missing:
        raise ArtifactError(
            f"the weights in {folder} do not fill the model of its config.json: {missing[:3]} of "
            f"{len(missing)} missing or of another shape. Make it again, or name another folder"
        )
    # A base's defaults of sampling are not used, and some that load cannot be saved.
    own = model.generation_config
    model.generation_config = GenerationConfig(
        bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
    )
    return model.eval()


def _policy_readable(folder: Path) -> AbstractContextManager[None]:
    return _readable(f"cannot load the policy in {folder}", "Make it again")


@contextmanager
def _readable(complaint: str, next_move: str) -> Iterator[None]:
    """Turns whatever transformers raises, which is of many kinds, into an ArtifactError."""
    try:
        yield
    except Exception as error:
        cause = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise ArtifactError(f"{complaint}: {cause}. {next_move}, or name another folder") from error


def _stored_weight(path: Path, name: str) -> torch.Tensor:
    """Returns a weight as a loaded fp32 model holds it."""
    with safe_open(path, "pt") as file:
        tensor: torch.Tensor = file.get_tensor(name)
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor


def _weights_in_files(folder: Path, config: Any) -> Files | None:
    """Returns file and stored name of each weight; None unless the files hold every one by name and shape."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    stored: dict[str, tuple[Path, str]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                stored[name], shapes[name] = (path, name), tuple(file.get_slice(name).get_shape())
    if config.tie_word_embeddings:
        for tied, source in getattr(model, "all_tied_weights_keys", {}).items():
            if tied in stored or source not in stored:
                return None
            stored[tied], shapes[tied] = stored[source], shapes[source]
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return stored if shapes == expected else None


def load_tokenizer(folder: Path) -> Any:
    """Returns the tokenizer in a model folder; never looks on the network. Raises ArtifactError."""
    if not (folder / "tokenizer.json").is_file():
        raise ArtifactError(
            f"no tokenizer in {folder}: tokenizer.json is missing. Name a model folder in Hugging Face format"
        )
    with _readable(f"the tokenizer in {folder} is not readable", "Save it there again"):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """Returns the SHA-256 of names, dtypes, shapes and contents; the mapping's order does not matter.

    Of more than `PIECE_BYTES` it is the SHA-256 of those of pieces, which threads take side by side.
    """
    return _digest((name, weights[name]) for name in sorted(weights))


def _digest(weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    found = list(in_threads(_sha256, _pieces(weights)))
    return found[0].hex() if len(found) == 1 else hashlib.sha256(b"".join(found)).hexdigest()


def _sha256(piece: Sequence[torch.Tensor]) -> bytes:
    hasher = hashlib.sha256()
    for run in piece:  # of other threads too: the interpreter is free meanwhile
        hasher.update(run.cpu().numpy().data)  # fresh memory, which one thread alone fills slowly
    return hasher.digest()


def _pieces(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    """Yields pieces of what is digested as runs of bytes; all have `PIECE_BYTES` but for the last."""
    piece: list[torch.Tensor] = []
    room = PIECE_BYTES
    for name, weight in weights:
        head = f"{name}\0{weight.dtype}\0{tuple(weight.shape)}\0".encode()
        content = weight.detach().contiguous().reshape(-1).view(torch.uint8)
        for left in (torch.frombuffer(bytearray(head), dtype=torch.uint8), content):
            while len(left):
                piece.append(left[:room])
                left, room = left[room:], room - len(piece[-1])
                if not room:
                    yield piece
                    piece, room = [], PIECE_BYTES
    yield piece  # an empty one too: no weights have a digest


def tokenizer_digest(tokenizer: Any) -> str:
    """Returns the digest of a fast tokenizer, by `digest_of_tokenizer`."""
    return digest_of_tokenizer(tokenizer.backend_tokenizer.to_str())
