"""Numbers to one self-contained HTML page: no script, no request, readable on a phone and in print."""

from __future__ import annotations

from pipeline.report.page import Dialogue, DialogueStep, Drawing, Section, Table, Text, page

__all__ = ["Dialogue", "DialogueStep", "Drawing", "Section", "Table", "Text", "page"]
