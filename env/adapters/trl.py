"""TRL: `GRPOTrainer(environment_factory=PhoneTools)`, on the rows of a tasks table.

The trainer calls `reset(**row)`, shows the policy every other public method as a tool, and takes the reward
from `get_reward`. A null reward (the environment's own failure) is NaN to TRL, which leaves it out.

`PhoneTools` has the tools of all levels. Rows of levels with fewer name a class with theirs in a column
`environment`, as `tools_class("phone", tools_of_row("phone", row), "FewTools")` makes it:
`environment_factory={"all": PhoneTools, "few": FewTools}`.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from inspect import Parameter, Signature
from operator import or_
from typing import Any, Literal

from env.adapters.session import Session, env_of_calls, text_of
from env.protocol import Tools


class _Episode:
    """A start and a reward; `tools_class` adds the tools."""

    environment = ""

    def __init__(self) -> None:
        self._session = Session(self.environment)

    def reset(self, **row: Any) -> None:
        """Starts the episode of one row of the data set."""
        self._session.start(row)

    def get_reward(self) -> float | None:
        """Returns the verdict's reward, or None if the episode could not be graded."""
        return self._session.verdict().reward


def tools_class(environment: str, tools: Tools | None = None, name: str | None = None) -> type:
    """Returns a no-argument class with a typed, documented method for each of an environment's tools.

    `tools` may be some of them; TRL logs the reward under `name`.
    """
    env = env_of_calls(environment)
    tools = env.spec.tools if tools is None else tools
    methods = {tool["function"]["name"]: _method(tool["function"]) for tool in tools}
    name = name or f"{environment.title()}Tools"
    return type(name, (_Episode,), {**methods, "environment": environment, "__module__": __name__})


def _method(tool: Mapping[str, Any]) -> Callable[..., str]:
    name, parts = tool["name"], tool["parameters"].get("properties", {})

    def method(self: _Episode, /, **arguments: Any) -> str:
        return text_of(self._session.call(name, arguments).messages)

    method.__name__ = method.__qualname__ = name
    lines = [f"    {key}: {part.get('description', key)}" for key, part in parts.items()]
    method.__doc__ = "\n".join([tool.get("description", name), "", "Args:", *lines])
    method.__annotations__ = {**{key: _type_of(part) for key, part in parts.items()}, "return": str}
    needed = dict.fromkeys(tool["parameters"].get("required", ()), Parameter.empty)
    parameters = [
        Parameter(key, Parameter.KEYWORD_ONLY, default=needed.get(key), annotation=_type_of(part))
        for key, part in parts.items()
    ]
    method.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter("self", Parameter.POSITIONAL_ONLY), *parameters]
    )
    return method


def _type_of(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if isinstance(schema["type"], list):
        return reduce(or_, (_type_of({**schema, "type": one}) for one in schema["type"]))
    if schema["type"] == "array":
        return list[_type_of(schema["items"])]  # type: ignore[misc]
    if schema["type"] == "object":
        others = schema["additionalProperties"]  # False of an object with named parts alone
        return dict[str, _type_of(others)] if others else dict  # type: ignore[misc]
    return {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}[schema["type"]]


PhoneTools = tools_class("phone")
