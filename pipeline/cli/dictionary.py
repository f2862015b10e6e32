"""`vdapo dictionary`: the folder of a run and every column of every table, as the page data/README.md."""

import argparse
from importlib.resources import files

import pyarrow as pa
from jinja2 import Environment, StrictUndefined

from pipeline.columns import SPECS
from pipeline.schema import Column


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command takes no arguments."""


def run(options: argparse.Namespace) -> int:
    """Prints the page."""
    print(dictionary(), end="")
    return 0


def dictionary() -> str:
    """Returns data/README.md: the words of `dictionary.md.jinja`, the columns of `pipeline.columns`."""
    text = files("pipeline.cli").joinpath("dictionary.md.jinja").read_text("utf-8")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    page = environment.from_string(text).render(specs=SPECS.values(), type_name=_of_column)
    return page.rstrip() + "\n"


def _of_column(column: Column) -> str:
    name = _type_name(column.type) + (" or null" if column.nullable else "")
    return name.replace("<", "&lt;").replace(">", "&gt;")


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list<{_type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        fields = [f"{f.name}: {_type_name(f.type)}{' or null' if f.nullable else ''}" for f in kind]
        return f"struct<{', '.join(fields)}>"
    return str(kind)
