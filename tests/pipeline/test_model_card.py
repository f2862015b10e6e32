from pathlib import Path
from typing import Any

import pytest

from env.chat.full import FullStyle
from env.phone.episode.compact import CompactStyle
from env.phone.episode.tools import TOOLS
from pipeline.report.model_card import write_card

CARD: dict[str, Any] = {
    "title": "An actor",
    "opening": "A model.",
    "tags": ("v-dapo", "phone: yes"),
    "sections": {"Training": {"updates": 3, "gate": "a | b\nc"}, "Data": {"tasks": 12}},
    "limits": ("It knows one thing.", "It forgets the rest."),
    "stop_token": "</s>",
}


def test_hugging_face_reads_the_front_matter(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    write_card(tmp_path, **CARD)
    read = hub.ModelCard.load(tmp_path / "README.md")
    assert read.data.library_name == "transformers"
    assert read.data.pipeline_tag == "text-generation"
    assert read.data.tags == ["v-dapo", "phone: yes"]
    assert read.text.lstrip().startswith("# An actor\n\nA model.\n")


def test_each_fact_is_one_row_whatever_is_in_it(tmp_path: Path) -> None:
    write_card(tmp_path, **CARD)
    lines = (tmp_path / "README.md").read_text().splitlines()
    start = lines.index("## Training")
    facts = ["| | |", "|---|---|", "| updates | 3 |", "| gate | a \\| b c |", ""]
    assert lines[start + 2 : start + 7] == facts
    assert "| tasks | 12 |" in lines
    assert lines[-2:] == ["- It knows one thing.", "- It forgets the rest."]
    assert any(line.startswith("A message ends with `</s>`.") for line in lines)


def test_the_command_that_serves_the_model_reads_its_calls(tmp_path: Path) -> None:
    """Without these options vLLM refuses requests with tools, or answers calls as plain text."""
    write_card(tmp_path, **CARD, serve_options=FullStyle(TOOLS).serve_options)
    assert (
        "vllm serve . --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3\n"
    ) in (tmp_path / "README.md").read_text()
    write_card(tmp_path, **CARD, serve_options=CompactStyle().serve_options)
    assert "\nvllm serve .\n" in (tmp_path / "README.md").read_text()
    assert "qwen3" not in " ".join(FullStyle(TOOLS, thinking=False).serve_options)
