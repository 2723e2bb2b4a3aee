"""What the clients ask for: forms that the server holds a small model to."""

from typing import Literal

from pydantic import BaseModel, Field

QUESTION = "Which city is the capital of France?"


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Rome", "Berlin"]
    country: Literal["France", "Italy", "Germany"]
    districts: int = Field(ge=0, le=99)


def weather(city: Literal["Paris", "Rome"], days: Literal[1, 2, 3]) -> str:
    """The weather of a city, for some days.

    Args:
        city: the city
        days: how many days
    """
    return f"{city}: sunny for {days} days"
