"""From a tool's name and arguments to an action: the one check of every way to call (text or adapter)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from env.chat.schema import check_schema, problem_of
from env.protocol import Action, ToolCall

Schemas = Mapping[str, Mapping[str, Any]]
"""Tool name -> JSON Schema of its arguments."""


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Returns the arguments' schema of each OpenAI tool.

    Raises:
        ValueError: a schema holds what `problem_of` would not check.
    """
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    for name, schema in schemas.items():
        check_schema(schema, name)
    return schemas


def checked(schemas: Schemas, text: str, calls: Sequence[tuple[str, Any]]) -> Action:
    """Returns the action of a message that makes these calls: `ok` if all of them fit, else their problem.

    Args:
        schemas: as `schemas_of` gives them.
        text: the message as sampled.
        calls: (name, arguments), at least one.
    """
    for name, arguments in calls:
        if name not in schemas:
            return Action(text, "unknown_tool", problem="unknown tool")
        if problem := problem_of(arguments, schemas[name]):
            return Action(text, "bad_args", problem=f"{name}: {problem}")
    return Action(text, "ok", tuple(ToolCall(name, arguments) for name, arguments in calls))
