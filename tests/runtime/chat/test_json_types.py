"""Parameters that a model writes in tags get values of types that their schemas admit."""

import json
from typing import Any

import pytest

from snapexport.runtime.chat.parsers.parser import CallArguments, CallBegun, join_texts
from snapexport.runtime.chat.parsers.table import OutputFormat


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "90210", "90210"),
        ({"type": ["string", "null"]}, "true", "true"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "integer"]}, "12", 12),
        ({"type": ["string", "number"]}, "12", 12),
        ({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "array"}]}, "1", "1"),
        ({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "array"}]}, "[1]", [1]),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"const": "1"}, "1", "1"),
        ({"allOf": [{"$ref": "#/$defs/a"}, {}]}, "1", "1"),
        ({"$ref": "#/$defs/loop"}, "1", 1),
        ({"type": "integer"}, "1.5", 1.5),
        ({"type": "number"}, "1e400", "1e400"),
        ({}, "1", 1),
    ],
)
def test_parameters_in_tags_have_types_that_their_schemas_admit(
    schema: Any, text: str, value: Any
) -> None:
    definitions = {"a": {"type": "string"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]}}
    tools = {"f": {"$defs": definitions, "properties": {"a": schema}}}
    call = f"<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>"
    for size in (1, len(call)):
        parser = OutputFormat.of("", "qwen3_coder", "none").parser(tools, "")
        pieces = [call[at : at + size] for at in range(0, len(call), size)]
        begun, arguments, _ = join_texts([event for one in pieces for event in parser.push(one)])
        assert begun == CallBegun("f") and isinstance(arguments, CallArguments)
        assert json.loads(arguments.text) == {"a": value}
