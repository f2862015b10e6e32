"""Numbers to one self-contained HTML page: no script, no request, readable on a small screen and in print."""

from pipeline.report.page import Block, Dialogue, Drawing, Section, Table, Text, Tiles, page, readings

__all__ = ["Block", "Dialogue", "Drawing", "Section", "Table", "Text", "Tiles", "page", "readings"]
