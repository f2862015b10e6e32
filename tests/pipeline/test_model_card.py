from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.report.model_card import ModelCard, render, write_card

CARD = ModelCard(
    title="An actor",
    opening="A model.",
    tags=("v-dapo", "phone: yes"),
    sections={"Training": {"updates": 3, "gate": "a | b\nc"}, "Data": {"tasks": 12}},
    limits=("It knows one thing.", "It forgets the rest."),
    stop_token="<|im_end|>",
)


def test_hugging_face_reads_the_front_matter(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    write_card(CARD, tmp_path)
    read = hub.ModelCard.load(tmp_path / "README.md")
    assert read.data.library_name == "transformers"
    assert read.data.pipeline_tag == "text-generation"
    assert read.data.tags == ["v-dapo", "phone: yes"]
    assert read.text.lstrip().startswith("# An actor\n\nA model.\n")


def test_each_fact_is_one_row_whatever_is_in_it() -> None:
    lines = render(CARD).splitlines()
    start = lines.index("## Training")
    assert lines[start + 2 : start + 7] == [
        "| | |",
        "|---|---|",
        "| updates | 3 |",
        "| gate | a \\| b c |",
        "",
    ]
    assert "| tasks | 12 |" in lines
    assert lines[-2:] == ["- It knows one thing.", "- It forgets the rest."]


def test_the_page_says_how_a_message_ends() -> None:
    assert "A message ends with `</s>`." in render(replace(CARD, stop_token="</s>"))
