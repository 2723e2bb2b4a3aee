"""The fields that prescribe an answer's form: OpenAI's `response_format`, and vLLM's."""

from typing import Annotated, Any, Literal

from pydantic import Field

from snapexport.errors import UserError
from snapexport.runtime.requests.structured_outputs import StructuredOutputs
from snapexport.serving.openai.strict import Strict

Schema = dict[str, Any] | str
"""An object, or its text."""


class JsonSchema(Strict):
    """`response_format.json_schema`. Not strict: what can't be enforced of it is ignored."""

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class _Text(Strict):
    type: Literal["text"]

    def form(self) -> StructuredOutputs | None:
        return None


class _JsonObject(Strict):
    type: Literal["json_object"]

    def form(self) -> StructuredOutputs | None:
        return StructuredOutputs(json_object=True)


class _JsonSchema(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema

    def form(self) -> StructuredOutputs | None:
        schema = self.json_schema
        return StructuredOutputs(json=schema.schema_, lenient=not schema.strict)


ResponseFormat = Annotated[_Text | _JsonObject | _JsonSchema, Field(discriminator="type")]


class Form(Strict):
    """`structured_outputs`."""

    json_: Schema | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool = False
    disable_fallback: bool = False
    disable_any_whitespace: Literal[False] = False
    disable_additional_properties: Literal[False] = False

    def form(self) -> StructuredOutputs:
        """Raises UserError unless there is one of them."""
        return StructuredOutputs(
            json=self.json_,
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
            json_object=self.json_object,
        )


class FormFields(Strict):
    """One of these at the most. The guided_ ones are vLLM's older names."""

    response_format: ResponseFormat | None = None
    structured_outputs: Form | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    @property
    def form_field(self) -> str:
        """The fields that are given, for errors."""
        given = [name for name in FormFields.model_fields if getattr(self, name) is not None]
        return " and ".join(given)

    def form(self) -> StructuredOutputs | None:
        """The form of the answer; None where it is free. Raises UserError."""
        guided = Form(
            json=self.guided_json,
            regex=self.guided_regex,
            choice=self.guided_choice,
            grammar=self.guided_grammar,
        )
        asked: list[_Text | _JsonObject | _JsonSchema | Form] = [
            one for one in (self.response_format, self.structured_outputs) if one is not None
        ]
        if guided != Form():
            asked.append(guided)
        forms = list({one for each in asked if (one := each.form())})
        if len(forms) > 1:
            raise UserError(f"{self.form_field} prescribe two forms", "give one of them")
        return forms[0] if forms else None
