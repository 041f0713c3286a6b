"""The official Python client: python openai_sdk.py URL"""

import json
import sys
import unittest
from enum import Enum

import openai
from openai import OpenAI
from openai.lib._tools import pydantic_function_tool
from pydantic import BaseModel, Field

URL = sys.argv.pop()
MODEL = "scripted"
client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
chat = client.chat.completions


class Weather(BaseModel):
    """Tells the weather."""

    city: str = Field(json_schema_extra={"pattern": r"^(?!x)\w+$"})
    days: int = Field(1, ge=1, le=7)


class Unit(Enum):
    """Of temperatures."""

    C = "c"
    F = "f"


class Report(BaseModel):
    """What the model is to say."""

    city: str
    unit: Unit
    temperatures: list[int]


REPORT = '{"city": "Oslo", "unit": "c", "temperatures": [3, 4]}'
SAY_REPORT = {"role": "user", "content": f"[[say {REPORT}]]"}
CALL = {
    "role": "user",
    "content": '[[think It rains.]][[call weather {"city": "Oslo", "days": 2}]]',
}
RECALL = {"role": "user", "content": "[[recall]]"}
SCHEMA = Weather.model_json_schema()
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
FLAT = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}


def results(calls):
    """Answers each call of a message."""
    return [{"role": "tool", "tool_call_id": one.id, "content": "rain"} for one in calls]


class Chat(unittest.TestCase):
    """Chat completions."""

    def converse(self, ask, tools):
        """Calls, answers, and asks on; every message goes back as it came."""
        messages = [{"role": "system", "content": "Be brief."}, CALL]
        message = ask(messages=messages, tools=tools)
        (call,) = message.tool_calls
        self.assertEqual(message.reasoning_content, "It rains.")
        self.assertEqual(json.loads(call.function.arguments), {"city": "Oslo", "days": 2})
        messages += [message, *results(message.tool_calls)]
        message = ask(messages=messages, tools=tools)
        self.assertEqual(message.content, "The tools said: rain.")
        message = ask(messages=[*messages, message, RECALL], tools=tools)
        self.assertEqual(
            message.content, "system user assistant tool assistant user assistant: rain"
        )

    def test_create(self):
        def ask(**options):
            return chat.create(model=MODEL, **options).choices[0].message

        self.converse(ask, [TOOL])

    def test_create_as_dicts(self):
        def ask(messages, tools):
            plain = [one if isinstance(one, dict) else one.model_dump() for one in messages]
            return chat.create(model=MODEL, messages=plain, tools=tools).choices[0].message

        self.converse(ask, [TOOL])

    def test_stream_helper(self):
        def ask(**options):
            with chat.stream(model=MODEL, **options) as stream:
                return stream.get_final_completion().choices[0].message

        self.converse(ask, [TOOL])

    def test_parse(self):
        tool = pydantic_function_tool(Weather, name="weather")
        tool["function"]["parameters"]["properties"]["city"].pop("pattern")

        def ask(**options):
            return chat.parse(model=MODEL, **options).choices[0].message

        self.converse(ask, [tool])

    def test_parsed_formats_go_back(self):
        message = chat.parse(model=MODEL, messages=[SAY_REPORT], response_format=Report)
        message = message.choices[0].message
        self.assertEqual(message.parsed.unit, Unit.C)
        for sent in message, message.model_dump(mode="json"), json.loads(message.to_json()):
            answer = chat.create(model=MODEL, messages=[SAY_REPORT, sent, RECALL])
            self.assertEqual(answer.choices[0].message.content, "user assistant user assistant: ")

    def test_parallel_calls(self):
        content = '[[call weather {"city": "Oslo", "days": 2}]][[call weather {"city": "Rome"}]]'
        messages = [{"role": "user", "content": content}]
        message = chat.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0].message
        self.assertEqual(len(message.tool_calls), 2)
        messages += [message, *results(message.tool_calls)]
        answer = chat.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0].message
        self.assertEqual(answer.content, "The tools said: rain, rain.")

    def test_calls_that_were_cut_off_go_back(self):
        choice = chat.create(model=MODEL, messages=[CALL], tools=[TOOL], max_tokens=80).choices[0]
        self.assertEqual(choice.finish_reason, "length")
        messages = [CALL, choice.message, *results(choice.message.tool_calls)]
        answer = chat.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0].message
        self.assertEqual(answer.content, "The tools said: rain.")

    def test_many_options(self):
        answer = chat.create(
            model=MODEL,
            messages=[{"role": "user", "content": "[[predicted]]", "name": "ada"}],
            max_completion_tokens=1_000_000,
            stop=["a1", "b1", "c1", "d1", "e1", "f1", "g1", "h1"],
            reasoning_effort="low",
            verbosity="low",
            store=False,
            metadata={"kind": "test"},
            service_tier="auto",
            user="ada",
            safety_identifier="ada",
            prompt_cache_key="ada",
            prediction={"type": "content", "content": "Hello there"},
            tools=[],
            extra_body={"chat_template_kwargs": {"enable_thinking": False}, "top_k": 20},
        )
        self.assertEqual(answer.choices[0].message.content, "Hello there")

    def test_errors_name_the_field(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            chat.create(model=MODEL, messages=[CALL], temperature=9)
        self.assertEqual(caught.exception.param, "temperature")


class Responses(unittest.TestCase):
    """The Responses API."""

    def converse(self, ask):
        """Calls, answers, and asks on; every item goes back as it came."""
        items = [CALL]
        response = ask(input=items, instructions="Be brief.", tools=[FLAT])
        thoughts, call = response.output
        self.assertEqual(thoughts.content[0].text, "It rains.")
        self.assertEqual(json.loads(call.arguments), {"city": "Oslo", "days": 2})
        items += response.output
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
        response = ask(input=items, tools=[FLAT])
        self.assertEqual(response.output_text, "The tools said: rain.")
        response = ask(input=[*items, *response.output, RECALL], tools=[FLAT])
        self.assertEqual(response.output_text, "user assistant tool assistant user assistant: rain")

    def test_create(self):
        self.converse(lambda **options: client.responses.create(model=MODEL, **options))

    def test_create_as_reasoning_models_are_asked(self):
        options = {"reasoning": {"effort": "low", "summary": "auto"}, "store": False}
        options |= {"include": ["reasoning.encrypted_content"], "truncation": "auto"}
        options |= {"text": {"verbosity": "low"}, "max_output_tokens": 1_000_000}
        self.converse(lambda **asked: client.responses.create(model=MODEL, **asked, **options))

    def test_stream(self):
        def ask(**options):
            with client.responses.stream(model=MODEL, **options) as stream:
                return stream.get_final_response()

        self.converse(ask)

    def test_parse(self):
        response = client.responses.parse(model=MODEL, input=[SAY_REPORT], text_format=Report)
        self.assertEqual(response.output_parsed.temperatures, [3, 4])
        items = [SAY_REPORT, *response.output, RECALL]
        response = client.responses.create(model=MODEL, input=items)
        self.assertEqual(response.output_text, "user assistant user assistant: ")


class Completions(unittest.TestCase):
    """The old API."""

    def test_create(self):
        prompt = "<|im_start|>user\n[[say Hello]]<|im_end|>\n<|im_start|>assistant\n"
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=100_000)
        self.assertEqual(answer.choices[0].text, "Hello")


unittest.main()
