"""Pydantic AI, over chat completions and over responses: python pydantic_ai_sdk.py URL"""

import sys
import unittest
from enum import Enum

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL = sys.argv.pop()
PROVIDER = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
MODELS = [
    OpenAIChatModel("scripted", provider=PROVIDER),
    OpenAIResponsesModel("scripted", provider=PROVIDER),
]
CALL = '[[think It rains.]][[call weather {"city": "Oslo", "days": 2}]]'
RAIN = "rain in Oslo for 2 days"


class Unit(Enum):
    """Of temperatures."""

    C = "c"
    F = "f"


class Report(BaseModel):
    """What the model is to say."""

    city: str
    tags: set[str]
    highs: dict[Unit, int]


REPORT = '{"city": "Oslo", "tags": ["wet"], "highs": {"c": 3}}'


def weather(city: str, days: int) -> str:
    """Tells the weather."""
    return f"rain in {city} for {days} days"


class Conversations(unittest.TestCase):
    """With either API."""

    def each(self):
        for model in MODELS:
            with self.subTest(model=type(model).__name__):
                yield model

    def test_tools(self):
        for model in self.each():
            agent = Agent(model, tools=[weather], system_prompt="Be brief.", retries=0)
            settings = {"max_tokens": 1_000_000, "temperature": 0.0}
            first = agent.run_sync(CALL, model_settings=settings)
            self.assertEqual(first.output, f"The tools said: {RAIN}.")
            second = agent.run_sync("[[recall]]", message_history=first.all_messages())
            roles = "system user assistant tool assistant user assistant"
            self.assertEqual(second.output, f"{roles}: {RAIN}")

    def test_streams(self):
        for model in self.each():
            agent = Agent(model, tools=[weather], instructions="Be brief.", retries=0)
            with agent.run_stream_sync(CALL) as stream:
                *_, text = stream.stream_text()
            self.assertEqual(text, f"The tools said: {RAIN}.")

    def test_output_types(self):
        kinds = [
            (ToolOutput(Report, name="report"), f"[[call report {REPORT}]]"),
            (NativeOutput(Report), f"[[say {REPORT}]]"),
            (PromptedOutput(Report), f"[[say {REPORT}]]"),
        ]
        for model in self.each():
            for kind, ask in kinds:
                with self.subTest(kind=type(kind).__name__):
                    report = Agent(model, output_type=kind, retries=0).run_sync(ask).output
                    self.assertEqual(report.highs, {Unit.C: 3})

    def test_reasoning_is_asked_for(self):
        for model in self.each():
            settings = {"openai_reasoning_effort": "low"}
            agent = Agent(model, model_settings=settings, retries=0)
            self.assertEqual(agent.run_sync("[[say fine]]").output, "fine")


unittest.main()
