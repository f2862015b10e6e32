"""The three tools of the phone scenario as OpenAI function schemas, and their names."""

from __future__ import annotations

from typing import Any

from env.phone.lexicon import FIELDS

SEARCH = "search_company"
FORM = "auth_info_form"
CALL = "make_phone_call"

FROM_FORM = "$form"
"""In `auth_info`: the value that this rollout's form gave for the field. `None` there is an offer."""


def _function(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


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
                "propertyNames": {"enum": list(FIELDS)},
                "additionalProperties": {"type": ["string", "null"]},
                "description": "field -> value from the form; null offers a field that the customer can give",
            },
        },
        ["phone_number", "request", "auth_info"],
    ),
)
