"""The page that goes with exported weights: README.md with the front matter that Hugging Face reads.

Nothing here depends on time, machine or folder, so equal models have equal pages.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
import yaml
from safetensors import safe_open

from pipeline.models.folder import weight_files


def write_card(
    folder: Path,
    *,
    title: str,
    opening: str,
    tags: Sequence[str],
    sections: Mapping[str, Mapping[str, object]],
    limits: Sequence[str],
    stop_token: str,
    serve_options: Sequence[str] = (),
) -> None:
    """Writes README.md beside a model, YAML front matter first.

    `opening` says what the model is, `sections` map a heading to facts by name, a table each, and `limits`
    say in sentences what nobody should expect. `serve_options` are those that `vllm serve` needs to read the
    model's calls. The front matter names neither a licence nor a base model: a
    folder's name is no name on a hub.
    """
    front = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": list(tags)}
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["cell"] = lambda value: " ".join(str(value).split()).replace("|", "\\|")
    template = environment.from_string(Path(__file__).with_suffix(".jinja").read_text(encoding="utf-8"))
    text = template.render(
        front=yaml.safe_dump(front, sort_keys=False),
        title=title,
        opening=opening,
        sections=sections,
        limits=limits,
        stop_token=stop_token,
        command=" ".join(["vllm serve .", *serve_options]),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def weights_facts(folder: Path) -> dict[str, object]:
    """Returns what exported weights say of themselves: architecture, parameters, longest sequence."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    parameters = 0
    for file in weight_files(folder):
        with safe_open(file, "numpy") as tensors:
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
            parameters += sum(math.prod(shape) for shape in shapes)
    return {
        "architecture": config["architectures"][0],
        "parameters": f"{parameters:,}",
        "longest sequence": f"{config['max_position_embeddings']:,} tokens",
    }
