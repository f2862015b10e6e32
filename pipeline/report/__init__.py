"""Numbers to one self-contained HTML page: no script, no request, readable on a phone and in print."""

from __future__ import annotations

from pipeline.report.page import (
    Block,
    Dialogue,
    DialogueStep,
    Drawing,
    Section,
    Table,
    Text,
    Tiles,
    Tone,
    page,
)

__all__ = [
    "Block",
    "Dialogue",
    "DialogueStep",
    "Drawing",
    "Section",
    "Table",
    "Text",
    "Tiles",
    "Tone",
    "page",
]
