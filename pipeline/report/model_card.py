"""The page that goes with exported weights: README.md with the front matter that Hugging Face reads.

Nothing here depends on time, machine or folder, so equal models have equal pages.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jinja2
import yaml
from safetensors import safe_open


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a model's page says."""

    title: str
    opening: str  # what the model is, as first paragraph
    tags: tuple[str, ...]
    sections: Mapping[str, Mapping[str, object]]  # heading -> facts by name; each section becomes a table
    limits: tuple[str, ...]  # what nobody should expect of it, in sentences
    stop_token: str


def render(card: ModelCard) -> str:
    """Returns the page in Markdown, YAML front matter first.

    The front matter names neither a licence nor a base model: a folder's name is no name on a hub.
    """
    front = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": list(card.tags)}
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["cell"] = _cell
    source = Path(__file__).with_suffix(".jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(front=yaml.safe_dump(front, sort_keys=False), card=card)


def write_card(card: ModelCard, folder: Path) -> None:
    """Writes the page beside a model."""
    (folder / "README.md").write_text(render(card), encoding="utf-8")


def weights_facts(folder: Path) -> dict[str, object]:
    """Returns what exported weights say of themselves: architecture, parameters, longest sequence."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    parameters = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "numpy") as tensors:
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
            parameters += sum(math.prod(shape) for shape in shapes)
    return {
        "architecture": config["architectures"][0],
        "parameters": f"{parameters:,}",
        "longest sequence": f"{config['max_position_embeddings']:,} tokens",
    }


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
