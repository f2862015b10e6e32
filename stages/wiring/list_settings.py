"""`vdapo settings [CONFIG]`: every setting, its value, what is allowed, where its default comes from."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from pipeline.config import load_config
from pipeline.settings import kinds_of, mark_of, section_of
from stages.settings import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("config", nargs="?", type=Path, help="a YAML; without one, the defaults")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value")
    parser.add_argument("--basic", action="store_true", help="leave out the advanced ones")
    parser.add_argument("--json", action="store_true", help="a list of objects")


def run(options: argparse.Namespace) -> int:
    """Prints the settings, or JSON; returns 0."""
    given = options.config
    config = Config.specialised({})() if given is None else load_config(Config, given, options.overrides)
    rows = [row for row in settings_of(config) if not (options.basic and row["level"] == "advanced")]
    if options.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        _print(rows)
    return 0


def settings_of(given: BaseModel, prefix: str = "", of: str = "") -> Iterator[dict[str, Any]]:
    """Yields every setting of a section and of those within it, of all kinds.

    `prefix` is the section's dotted name with a dot behind it, `of` its kind where another is configured.
    """
    schema = type(given).model_json_schema()
    for name, info in type(given).model_fields.items():
        key, value = prefix + name, getattr(given, name)
        if kinds := kinds_of(info):
            chosen = getattr(value, kinds.setting)
            kind_key = f"{key}.{kinds.setting}"
            docs = [f"{kind}: {_doc(section)}" for kind, section in kinds.sections.items()]
            row = _row(kind_key, chosen, kinds.default, ", ".join(kinds.sections), of)
            yield row | {"meaning": "; ".join(docs)}
            seen = {kind_key}
            for kind in sorted(kinds.sections, key=lambda kind: kind != chosen):
                section = value if kind == chosen else kinds.sections[kind]()
                apart = of if kind == chosen else f"{kinds.setting} = {kind}"
                rows = [row for row in settings_of(section, f"{key}.", apart) if row["setting"] not in seen]
                yield from rows
                seen |= {row["setting"] for row in rows}
        elif section_of(info):
            yield from settings_of(value, f"{key}.", of)
        else:
            plain = given.model_dump(mode="json")[name]
            default = json.loads(json.dumps(info.get_default(call_default_factory=True)))
            row = _row(key, plain, default, _allowed(schema["properties"][name]), of)
            yield row | {
                "meaning": info.description or "",
                "source": mark_of(info, "source") or "",
                "level": "advanced" if mark_of(info, "advanced") else "basic",
                "decides": "how" if mark_of(info, "runtime") else "what",
            }


def _row(key: str, value: Any, default: Any, allowed: str, of: str) -> dict[str, Any]:
    row = {"setting": key, "value": value, "default": default, "allowed": allowed, "of": of}
    return row | {"meaning": "", "source": "", "level": "basic", "decides": "what"}


def _doc(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().splitlines()[0].rstrip(".")


def _allowed(schema: Mapping[str, Any]) -> str:
    """Returns what a JSON schema allows, in words."""
    if parts := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_allowed(part) for part in parts))
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[name]:g}" for name, sign in signs.items() if name in schema]
    names = {"boolean": "true or false", "array": "list", "object": "table", "string": "text"}
    kind = str(schema.get("type", "anything"))
    return " ".join([names.get(kind, kind), *bounds])


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints each setting with its value in a line, and below it what it is: no table, so all widths do."""
    console = Console(highlight=False)
    for row in rows:
        value, default = (json.dumps(row[name], ensure_ascii=False) for name in ("value", "default"))
        value += f" (default {default})" if row["value"] != row["default"] else ""
        of = f"[of {row['of']}] " if row["of"] else ""
        source = f" ({row['source']})" if row["source"] else ""
        marks = [row["level"]] * (row["level"] == "advanced") + ["runtime"] * (row["decides"] == "how")
        allowed = ", ".join([*marks, f"allowed: {row['allowed']}"])
        console.print(Text.assemble((row["setting"], "bold"), f" = {value}"), soft_wrap=True)
        console.print(Padding(Text(f"{of}{row['meaning']}{source}; {allowed}"), (0, 0, 0, 4)))
