from pathlib import Path
from typing import Any

import pytest

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
