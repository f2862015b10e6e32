"""The tools of the phone scenario as OpenAI function schemas, and their names."""

from typing import Any, Final

from env.phone.world.levels import Level
from env.phone.world.lexicon import FIELDS, REFERENCE

SEARCH = "search_company"
FORM = "auth_info_form"
CALL = "make_phone_call"
WAIT = "wait"

FROM_FORM: Final = True
"""In `auth_info`: the value that this rollout's form gave for the field, the first of two, or the reference
that a line gave for this request; `None` there is an offer. No schema allows it, so only a style with a word
for it can say it, and no text that a policy writes as a value is taken for it."""


def _function(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    closed = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": closed}}


TOOLS: tuple[dict[str, Any], ...] = (
    _function(
        SEARCH,
        "Looks a company up in the directory: its industry and its departments with their numbers.",
        {"company_name": {"type": "string", "description": "name of the company"}},
        ["company_name"],
    ),
    _function(
        FORM,
        "Asks the customer for identification, once per conversation.",
        {
            "fields": {
                "type": "array",
                "items": {"type": "string", "enum": list(FIELDS)},
                "minItems": 1,
                "uniqueItems": True,
                "description": "fields to ask for, all that will be needed",
            }
        },
        ["fields"],
    ),
    _function(
        CALL,
        "Calls a department on the customer's behalf.",
        {
            "phone_number": {"type": "string", "description": "number from the directory"},
            "request": {"type": "string", "description": "id of the request, such as R1"},
            "auth_info": {
                "type": "object",
                "propertyNames": {"enum": [*FIELDS, REFERENCE]},
                "additionalProperties": {"type": ["string", "null"]},
                "description": "field -> value from the form, and a reference that a line gave as "
                "`reference`; null offers a field that the customer can give",
            },
        },
        ["phone_number", "request", "auth_info"],
    ),
    _function(
        WAIT,
        "Waits for the call on hold to be taken, or for a closed line to open.",
        {"call_id": {"type": "string", "description": "id of the call on hold"}},
        [],
    ),
)


def tools_of(level: Level) -> tuple[dict[str, Any], ...]:
    """Returns the tools that an agent has at a level."""
    return tuple(tool for tool in TOOLS if level.has_wait or tool["function"]["name"] != WAIT)
