"""The critic's network: a decoder trunk and one linear layer, value logit and error logit per token."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS,
)
from transformers.utils import logging

from pipeline.errors import ArtifactError
from pipeline.models.folder import check_weights

NUM_OUTPUTS = 2
VALUE, ERROR = 0, 1
"""Places of the value logit z and of the error logit among the outputs."""


def trunk_config(trunk_folder: Path) -> Any:
    """Returns the configuration of a trunk, its pad token filled in; reads no weights.

    Raises ArtifactError for no model, one that is not causal or has no classifier of its kind, or no pad
    token (the class would then pool at a wrong token).
    """
    if not (trunk_folder / "config.json").is_file():
        raise ArtifactError(
            f"no critic trunk in {trunk_folder}: config.json is missing. Name a folder in HF format"
        )
    check_weights(trunk_folder)
    try:
        config = AutoConfig.from_pretrained(trunk_folder, local_files_only=True)
    except Exception as error:  # transformers raises many kinds; an OSError would read as a disk's failure
        first_line = (str(error).splitlines() or [""])[0]
        raise ArtifactError(
            f"the config.json of the critic trunk in {trunk_folder} is not readable: {first_line}. "
            "Export the model there again, or name another folder"
        ) from error
    if config.model_type not in CAUSAL or config.model_type not in CLASSIFIERS:
        raise ArtifactError(
            f"the critic trunk in {trunk_folder} is a {config.model_type}, which transformers has no causal "
            "model and sequence classifier of; name a decoder, e.g. a qwen3 or a llama"
        )
    if config.pad_token_id is None and (trunk_folder / "tokenizer.json").is_file():
        config.pad_token_id = AutoTokenizer.from_pretrained(trunk_folder, local_files_only=True).pad_token_id
    if config.pad_token_id is None:
        raise ArtifactError(
            f"the trunk in {trunk_folder} has no pad token; set pad_token_id in its config.json"
        )
    return config


def make_critic(trunk_folder: Path) -> Any:
    """Returns a sequence classifier of the trunk's kind, fp32, in eval mode: its weights and a head of zeros.

    The trunk is a causal language model in Hugging Face format. The head (`score`, hidden size -> 2, no bias)
    starts at zero, so the first critic predicts the base rate.
    """
    logging.disable_progress_bar()
    config = trunk_config(trunk_folder)
    config.num_labels = NUM_OUTPUTS
    config.id2label = {VALUE: "value", ERROR: "error"}
    config.label2id = {"value": VALUE, "error": ERROR}
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # its report of a missing head: the head is made below, the rest checked
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            trunk_folder, config=config, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    finally:
        logging.set_verbosity(verbosity)
    missing = sorted(set(info["missing_keys"]) - {"score.weight"}) + [
        str(key) for key in info["mismatched_keys"]
    ]
    if missing:
        raise ArtifactError(f"the weights in {trunk_folder} do not fill the trunk: {missing[:3]} are missing")
    with torch.no_grad():
        model.score.weight.zero_()
    model.score.to(torch.float32)
    return model.eval()
