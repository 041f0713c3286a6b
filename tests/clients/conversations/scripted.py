"""A model that follows a plan: it reads its prompt's text, and calls tools as good ones do."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.grammar import (
    MAX_LEXER_STATES,
    find_reason,
    make_matcher,
    matching_tokenizer,
)
from tests.gateway.fake_scheduler import EOS, FakeScheduler, Script, Step, tokens

NAME = "scripted"
MAX_MODEL_LEN = 81_920
"""A token is little more than a byte: the agents' instructions and tools alone take much of it."""
_STEP = 7
"""Tokens of a step; pieces of a stream end inside words and marks."""

CHAT_TEMPLATE = """\
{%- macro turn(role, text) -%}
<|im_start|>{{ role }}
{{ text }}<|im_end|>
{% endmacro -%}
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call them as <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>.<|im_end|>
{% endif -%}
{%- for message in messages %}
    {%- set said = namespace(text=message.content or "") %}
    {%- for call in message.tool_calls or [] %}
        {%- set said.text = said.text ~ "<tool_call>" ~ call.function | tojson ~ "</tool_call>" %}
    {%- endfor %}
    {%- if message.reasoning_content %}
        {%- set said.text = "<think>" ~ message.reasoning_content ~ "</think>" ~ said.text %}
    {%- endif %}
    {{- turn(message.role, said.text) }}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


@dataclass(frozen=True)
class Prompt:
    """What the template made of a request."""

    tools: dict[str, Any]
    """Parameters of the functions by name."""
    turns: list[tuple[str, str]]
    """Role and text of each message."""
    prediction: str
    """What came as the expected answer."""

    @classmethod
    def read(cls, text: str, prediction: str) -> "Prompt":
        """Takes a prompt of `CHAT_TEMPLATE` apart."""
        parts = re.findall(r"<\|im_start\|>(\w+)\n(.*?)(?=<\|im_start\|>|\Z)", text, re.DOTALL)
        turns = [(role, said.rstrip("\n").removesuffix("<|im_end|>")) for role, said in parts]
        tools: dict[str, Any] = {}
        if turns and turns[0][0] == "tools":
            lines = turns.pop(0)[1].split("\n")[:-1]
            functions = [json.loads(line)["function"] for line in lines]
            tools = {one["name"]: one.get("parameters", {}) for one in functions}
        return cls(tools, turns, prediction)

    @property
    def results(self) -> list[str]:
        """What the tools said since the user last did."""
        roles = [role for role, _ in self.turns]
        start = len(roles) - roles[::-1].index("user") if "user" in roles else 0
        return [text for role, text in self.turns[start:] if role == "tool"]

    @property
    def asked(self) -> str:
        """What the user said last."""
        return next((text for role, text in reversed(self.turns) if role == "user"), "")

    def call(self, name: str, **arguments: Any) -> str:
        """Writes a call of a tool as a model does, the arguments in the order of its parameters."""
        order = list(self.tools[name].get("properties", {}))
        arguments = dict(sorted(arguments.items(), key=lambda one: order.index(one[0])))
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


Plan = Callable[[Prompt], str]
"""What the model answers to a prompt."""


def thought(text: str) -> str:
    """Writes what a model thinks before it answers."""
    return f"<think>\n{text}\n</think>\n\n"


def obey(prompt: Prompt) -> str:
    """A plan: does what the user says last, in double brackets; then says what the tools said.

    `[[think TEXT]]`, `[[say TEXT]]`, `[[call NAME ARGUMENTS]]`, `[[predicted]]` for the prediction,
    `[[recall]]` for the roles of the conversation and all that tools said in it.
    """
    if prompt.results:
        return f"The tools said: {', '.join(prompt.results)}."
    orders = re.findall(
        r"\[\[(think|say|call|predicted|recall) ?(.*?)\]\](?!\])", prompt.asked, re.DOTALL
    )
    answer = ""
    for order, what in orders:
        if order == "call":
            name, _, arguments = what.partition(" ")
            answer += prompt.call(name, **json.loads(arguments))
        elif order == "say":
            answer += what
        elif order == "think":
            answer += thought(what)
        elif order == "predicted":
            # It is expected after thoughts.
            answer += prompt.prediction.rpartition("</think>\n\n")[2]
        else:
            roles = " ".join(role for role, _ in prompt.turns)
            said = ", ".join(text for role, text in prompt.turns if role == "tool")
            answer += f"{roles}: {said}"
    return answer or "Hello."


class ScriptedScheduler(FakeScheduler):
    """Answers as `plan` says, if the request's grammar allows it."""

    def __init__(self, directory: Path) -> None:
        """Reads the tokenizer of the model that the gateway serves."""
        source = (directory / "tokenizer.json").read_text()
        self._backend = Backend.from_str(source)
        super().__init__(self._backend.get_vocab_size(), max_model_len=MAX_MODEL_LEN)
        self._matching = matching_tokenizer(source, self.vocab_size, [EOS])
        self.plan: Plan = lambda _: "Hello."
        self.prompts: list[Prompt] = []
        """All that came since the plan was made."""

    @contextmanager
    def follow(self, plan: Plan) -> Iterator[list[Prompt]]:
        """Answers by a plan; gives the prompts as they come."""
        self.plan, self.prompts = plan, []
        yield self.prompts

    def next_script(self, add: scheduler_pb2.Add) -> Script:
        """Says what the plan says, up to `max_tokens`; a fault is the request's error."""
        columns = add.prompt_token_ids, add.predicted_token_ids
        text, prediction = (self._decode(tokens(column)) for column in columns)
        prompt = Prompt.read(text, prediction)
        self.prompts.append(prompt)
        try:
            token_ids = self._backend.encode(self.plan(prompt)).ids
            self._follow(add.sampling.grammar, token_ids)
        except Exception as error:
            reason = scheduler_pb2.FINISH_REASON_ERROR
            return Script(reason=reason, message=f"{type(error).__name__}: {error}")
        token_ids = [*token_ids, EOS][: add.max_tokens]
        is_whole = token_ids[-1] == EOS
        parts = [token_ids[start : start + _STEP] for start in range(0, len(token_ids), _STEP)]
        stop, length = scheduler_pb2.FINISH_REASON_STOP, scheduler_pb2.FINISH_REASON_LENGTH
        return Script([Step(part) for part in parts], stop if is_whole else length)

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._backend.decode(token_ids, skip_special_tokens=False))

    def _follow(self, grammar: str, token_ids: list[int]) -> None:
        """Raises ValueError if the grammar does not allow the answer, as the worker would."""
        if not grammar:
            return
        matcher = make_matcher(self._matching, grammar, MAX_LEXER_STATES + 4 * len(token_ids))
        num_taken = matcher.try_consume_tokens(token_ids)
        if matcher.is_error():
            raise ValueError(find_reason(matcher))
        if num_taken < len(token_ids) or not matcher.is_accepting():
            said = self._decode(token_ids[:num_taken])
            raise ValueError(f"the grammar allows no more of the answer than {said!r}")
