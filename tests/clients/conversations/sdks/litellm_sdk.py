"""LiteLLM, by two of its providers: python litellm_sdk.py URL"""

import sys
import unittest

import litellm
from pydantic import BaseModel

URL = sys.argv.pop()
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
        "cache_control": {"type": "ephemeral"},
    },
}
CALL = {
    "role": "user",
    "content": '[[think It rains.]][[call weather {"city": "Oslo", "days": 2}]]',
}
RECALL = {"role": "user", "content": "[[recall]]"}


class Report(BaseModel):
    """What the model is to say."""

    city: str
    tags: list[str]


REPORT = '{"city": "Oslo", "tags": ["wet"]}'


class OpenAI(unittest.TestCase):
    """The provider of OpenAI's own API."""

    provider = "openai"

    def ask(self, **options):
        return litellm.completion(
            model=f"{self.provider}/scripted",
            api_base=f"{URL}/v1",
            api_key="none",
            num_retries=0,
            **options,
        )

    def converse(self, ask):
        """Calls, answers, and asks on; every message goes back as it came."""
        cached = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
        messages = [{"role": "system", "content": [cached]}, CALL]
        message = ask(messages=messages, tools=[TOOL])
        (call,) = message.tool_calls
        self.assertEqual(message.reasoning_content, "It rains.")
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        message = ask(messages=messages, tools=[TOOL])
        self.assertEqual(message.content, "The tools said: rain.")
        message = ask(messages=[*messages, message, RECALL], tools=[TOOL])
        roles = "system user assistant tool assistant user assistant"
        self.assertEqual(message.content, f"{roles}: rain")

    def test_completion(self):
        self.converse(lambda **options: self.ask(**options).choices[0].message)

    def test_stream(self):
        def ask(**options):
            chunks = list(self.ask(**options, stream=True, stream_options={"include_usage": True}))
            return (
                litellm.stream_chunk_builder(chunks, messages=options["messages"])
                .choices[0]
                .message
            )

        self.converse(ask)

    def test_formats(self):
        messages = [{"role": "user", "content": f"[[say {REPORT}]]"}]
        answer = self.ask(messages=messages, response_format=Report)
        self.assertEqual(Report.model_validate_json(answer.choices[0].message.content).city, "Oslo")

    def test_predictions(self):
        answer = self.ask(
            messages=[{"role": "user", "content": "[[predicted]]"}],
            extra_body={"prediction": {"type": "content", "content": "fine"}},
        )
        self.assertEqual(answer.choices[0].message.content, "fine")

    def test_many_options(self):
        for options in (
            {"reasoning_effort": "low"},
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        ):
            with self.subTest(**options):
                answer = self.ask(
                    messages=[
                        {"role": "user", "content": "Hi"},
                        {"role": "assistant", "content": "Hello.", "reasoning_content": "hm"},
                        {"role": "user", "content": "[[say fine]]"},
                    ],
                    max_tokens=1_000_000,
                    stop=[f"stop{number}" for number in range(8)],
                    drop_params=True,
                    allowed_openai_params=["thinking", "reasoning_effort"],
                    **options,
                )
                self.assertEqual(answer.choices[0].message.content, "fine")

    def test_responses(self):
        flat = {"type": "function", "name": "weather", **TOOL["function"]}
        del flat["cache_control"]
        options = {"model": f"{self.provider}/scripted", "api_base": f"{URL}/v1", "api_key": "none"}
        items = [CALL]
        response = litellm.responses(input=items, tools=[flat], **options)
        called = [one for one in response.output if one.type == "function_call"]
        items += [one.model_dump() for one in response.output]
        output = {"type": "function_call_output", "call_id": called[0].call_id, "output": "rain"}
        response = litellm.responses(input=[*items, output], tools=[flat], **options)
        self.assertEqual(response.output[-1].content[0].text, "The tools said: rain.")


class HostedVllm(OpenAI):
    """The provider of servers that are like vLLM."""

    provider = "hosted_vllm"


unittest.main()
