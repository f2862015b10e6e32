"""The one check of arguments, of every way to call."""

import pytest

from env.chat.calls import checked, schemas_of

PAY = {"name": "pay", "parameters": {"type": "object", "properties": {"sum": {"type": "number"}}}}
PAY["parameters"]["additionalProperties"] = False
SCHEMAS = schemas_of([{"type": "function", "function": PAY}])


@pytest.mark.parametrize(
    ("number", "status"), [(2.5, "ok"), (3, "ok"), (1e999, "bad_args"), (-1e999, "bad_args")]
)
def test_a_number_is_one_that_json_can_store(number, status):
    """An adapter's JSON may hold 1e999, which Python reads as infinity and no table takes."""
    assert checked(SCHEMAS, "", [("pay", {"sum": number})]).status == status
