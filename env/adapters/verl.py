"""verl: one `BaseTool` per tool, one episode per request, on the rows of a tasks table.

In verl's tool configuration, once for each tool of the environment:

    - class_name: env.adapters.verl.EnvironmentTool
      config: {type: native, environment: phone, tool: search_company}

`tools_kwargs(row, "phone")` belongs into the data set's `extra_info.tools_kwargs`, and
`tool_selection(row, "phone")` into its `extra_info.tool_selection`: else a policy is shown the tools of all
levels. verl's agent loop makes and releases an instance for every call; an episode is kept under its
request's id until verl drops that. An ungraded step's reward is NaN: verl passes over a null one, and the
rest would add up to 0.
"""

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import uuid4

from pydantic import Field
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from env.adapters.session import Session, env_of_calls, text_of, tools_of_row


class WholeSchema(OpenAIFunctionToolSchema):
    """A tool's whole schema; verl's own model of one drops what lists and objects may hold."""

    whole: dict[str, Any] = Field(exclude=True)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Returns the OpenAI schema as the environment has it."""
        return self.whole


class EnvironmentTool(BaseTool):
    """One tool of an environment; those of one request share its episode."""

    _sessions: ClassVar[dict[str, Session]] = {}

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        tools = env_of_calls(config["environment"]).spec.tools
        [schema] = [tool for tool in tools if tool["function"]["name"] == config["tool"]]
        super().__init__(config, tool_schema or WholeSchema(**schema, whole=schema))
        self._rows: dict[str, Mapping[str, Any]] = {}

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Takes the task's row from `create_kwargs`; returns the instance's id and no text."""
        instance_id = instance_id or uuid4().hex
        self._rows[instance_id] = kwargs["create_kwargs"]["row"]
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], agent_data: Any = None, **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Plays one call in the request's episode; returns text, its gain (NaN if ungraded), {}."""
        request = instance_id if agent_data is None else agent_data.request_id
        if request not in self._sessions:
            self._sessions[request] = Session(self.config["environment"])
            self._sessions[request].start(self._rows[instance_id])
            if agent_data is not None:
                weakref.finalize(agent_data, self._sessions.pop, request, None)
        session = self._sessions[instance_id] = self._sessions[request]  # `calc_reward` gets that id alone
        result = session.call(self.name, parameters)
        return ToolResponse(text=text_of(result.messages)), session.gain(), {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Returns the verdict's reward on the episode of this instance; NaN if it could not be graded."""
        reward = self._sessions[instance_id].verdict().reward
        return float("nan") if reward is None else reward

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forgets the instance, and its episode unless that is a longer-lived request's."""
        self._rows.pop(instance_id, None)
        self._sessions.pop(instance_id, None)


def tools_kwargs(row: Mapping[str, Any], environment: str) -> dict[str, Any]:
    """Returns what gives every tool of an environment a task's row. Step rewards add up to the reward."""
    tools = env_of_calls(environment).spec.tools
    return {tool["function"]["name"]: {"create_kwargs": {"row": dict(row)}} for tool in tools}


def tool_selection(row: Mapping[str, Any], environment: str) -> list[str]:
    """Returns the names of the tools that a task's level has."""
    return [tool["function"]["name"] for tool in tools_of_row(environment, row)]
