"""LangChain, over chat completions and over responses: python langchain_sdk.py URL"""

import sys
import unittest
from enum import Enum

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

URL = sys.argv.pop()


class Unit(Enum):
    """Of temperatures."""

    C = "c"
    F = "f"


class Place(BaseModel):
    """What the model is to say where LangChain says `strict`."""

    city: str
    tags: list[str]


class Report(Place):
    """What the model is to say."""

    tags: set[str]
    highs: dict[Unit, int]
    password: str = Field(json_schema_extra={"format": "password"})


PLACE = '{"city": "Oslo", "tags": ["wet", "cold"]}'
REPORT = '{"city": "Oslo", "tags": ["wet", "cold"], "highs": {"c": 3}, "password": "x"}'


@tool
def weather(city: str, days: int = 1) -> str:
    """Tells the weather."""
    return f"rain in {city} for {days} days"


RAIN = "rain in Oslo for 2 days"


class Chat(unittest.TestCase):
    """Chat completions."""

    options: dict[str, object] = {}

    def setUp(self):
        self.model = ChatOpenAI(
            model="scripted",
            base_url=f"{URL}/v1",
            api_key="none",
            max_retries=0,
            max_tokens=1_000_000,
            **self.options,
        )

    def converse(self, ask):
        """Calls, answers, and asks on; every message goes back as it came."""
        call = '[[think It rains.]][[call weather {"city": "Oslo", "days": 2}]]'
        messages = [SystemMessage("Be brief."), HumanMessage(call)]
        message = ask(messages)
        (called,) = message.tool_calls
        messages += [message, weather.invoke(called)]
        message = ask(messages)
        self.assertEqual(message.text, f"The tools said: {RAIN}.")
        message = ask([*messages, message, HumanMessage("[[recall]]")])
        roles = "system user assistant tool assistant user assistant"
        self.assertEqual(message.text, f"{roles}: {RAIN}")

    def test_invoke(self):
        self.converse(self.model.bind_tools([weather]).invoke)

    def test_stream(self):
        bound = self.model.bind_tools([weather])

        def ask(messages):
            first, *rest = bound.stream(messages)
            return sum(rest, first)

        self.converse(ask)

    def test_reasoning_is_asked_for(self):
        asked = {"reasoning": {"effort": "low"}} if self.options else {"reasoning_effort": "low"}
        self.assertEqual(self.model.invoke("[[say fine]]", **asked).text, "fine")

    def test_calls_that_were_cut_off_go_back(self):
        model = self.model.bind_tools([weather]).bind(max_tokens=50)
        messages = [HumanMessage('[[call weather {"city": "Oslo", "days": 2}]]')]
        message = model.invoke(messages)
        ids = [one["id"] for one in [*message.tool_calls, *message.invalid_tool_calls]]
        messages += [message, *(ToolMessage("cut off", tool_call_id=one) for one in ids)]
        self.assertIn("cut off", self.model.invoke(messages).text)

    def test_structured_output(self):
        for method, kind, ask in (
            ("json_schema", Place, f"[[say {PLACE}]]"),
            ("function_calling", Report, f"[[call Report {REPORT}]]"),
            ("json_mode", Report, f"[[say {REPORT}]] as JSON"),
        ):
            with self.subTest(method=method):
                said = self.model.with_structured_output(kind, method=method).invoke(ask)
                self.assertEqual(set(said.tags), {"wet", "cold"})

    def test_stops_and_predictions(self):
        if not self.options:
            stop = [f"stop{number}" for number in range(12)]
            prediction = {"type": "content", "content": "fine"}
            message = self.model.invoke("[[predicted]]", stop=stop, prediction=prediction)
            self.assertEqual(message.text, "fine")


class Responses(Chat):
    """The Responses API."""

    options = {"use_responses_api": True}


class StoredResponses(Chat):
    """The same, in the shape of LangChain 1, with what reasoning models are asked for."""

    options = {
        "use_responses_api": True,
        "output_version": "responses/v1",
        "include": ["reasoning.encrypted_content"],
        "store": False,
    }


unittest.main()
