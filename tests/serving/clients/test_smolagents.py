"""smolagents' agent that calls tools, which asks for a call in each step."""

from typing import Any, ClassVar

from smolagents import OpenAIModel, Tool, ToolCallingAgent

from tests.serving.clients.conftest import MODEL_NAME, Target


class Weather(Tool):  # type: ignore[misc]
    name = "weather"
    description = "The weather of a city."
    inputs: ClassVar[dict[str, Any]] = {
        "city": {"type": "string", "description": "a city", "enum": ["Paris", "Rome"]}
    }
    output_type = "string"

    def forward(self, city: str) -> str:
        return f"{city}: sunny"


def test_agent_calls_its_tool(target: Target) -> None:
    """Without final_answer, whose text a small model writes until it is cut."""
    model = OpenAIModel(MODEL_NAME, f"{target.url}/v1", api_key="none", max_tokens=64)
    agent = ToolCallingAgent([Weather()], model, max_steps=1)
    del agent.tools["final_answer"]
    agent.run("How is the weather in Paris?")
    (step,) = [step for step in agent.memory.steps if getattr(step, "tool_calls", None)]
    assert step.tool_calls[0].name == "weather" and "sunny" in step.observations
