"""Models that think before they answer: thoughts come apart, in chats and responses.

After what clients of other servers see: vllm-project/vllm#13375 (tags as plain text),
vllm-project/vllm#14429 (structured output and reasoning), ggml-org/llama.cpp#11861.
"""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from optimist_client import AsyncClient
from optimist_client import Message as ChatMessage
from optimist_gateway.text.tokenizer import load_tokenizer
from tests.gateway.conftest import save_model
from tests.gateway.fake_scheduler import tokens
from tests.gateway.harness import CHAT, COMPLETIONS, RESPONSES, Fields, Gateway, starting
from tests.stack import free_port

# As Qwen 3 has it: the model begins to think unless the prompt says that it did not.
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content.split('CLOSE')[-1].lstrip() if m.role == 'assistant' else m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n"
    "{% if '/open' in messages[-1].content %}OPEN\n"
    "{% elif '/no_think' in messages[-1].content %}OPEN\n\nCLOSE\n\n{% endif %}{% endif %}"
)
PLAIN, ADDED, SPECIAL = "plain", "added", "special"
TAGS = {
    PLAIN: ("<think>", "</think>"),
    ADDED: ("<think>", "</think>"),
    SPECIAL: ("[THINK]", "[/THINK]"),
}
"""How vocabularies have the tags: as pieces of text, as tokens, and as special tokens."""
in_module = pytest.mark.asyncio(loop_scope="module")
pytestmark = in_module


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(TAGS))
async def thinking(
    request: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Gateway, str, str]]:
    """A gateway, and the tags of its model."""
    opening, closing = TAGS[request.param]
    directory: Path = tmp_path_factory.mktemp("thinking") / "tiny"
    template = TEMPLATE.replace("OPEN", opening).replace("CLOSE", closing)
    save_model(directory, 512, template)
    file = directory / "tokenizer.json"
    backend = Backend.from_file(str(file))
    if request.param != PLAIN:
        add = backend.add_special_tokens if request.param == SPECIAL else backend.add_tokens
        add([AddedToken(tag, normalized=False) for tag in (opening, closing)])
        backend.save(str(file))
    port = free_port()
    async with starting(
        directory, load_tokenizer(str(directory)), backend, grpc_port=port
    ) as started:
        yield started, opening, closing
        await started.until_nothing_runs()


Thinking = tuple[Gateway, str, str]


def asked(text: str) -> Fields:
    return {"messages": [{"role": "user", "content": text}]}


def written(thinking: Thinking, text: str) -> str:
    """Returns a text with the model's tags."""
    return text.replace("(", thinking[1]).replace(")", thinking[2])


SAID = [
    # what is asked, what the model writes with ( and ) for its tags, thoughts, content
    ("Hi", "(\nSo: a fox.\n)\n\nThe fox.", "So: a fox.", "The fox."),
    ("Hi", "The fox.", None, "The fox."),
    ("Hi", "The ( is no ) tag.", None, "The ( is no ) tag."),
    ("Hi", "(\n\n)\n\nThe fox.", None, "The fox."),
    ("Hi", "(A)B (C) D", "A", "B (C) D"),
    ("/open", "So: a fox.\n)\n\nThe fox.", "So: a fox.", "The fox."),
    ("/open", "(\nSo.)The fox.", "So.", "The fox."),
    ("/open", "So: a fox", "So: a fox", ""),
    ("/no_think", "The fox.", None, "The fox."),
    ("/no_think", "(A) The fox.", None, "(A) The fox."),
]


async def streamed(gateway: Gateway, **fields: Any) -> tuple[str | None, str, list[Any]]:
    chunks = await gateway.chunks(CHAT, **fields)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    thoughts = [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta]
    assert all(thoughts)
    # As DeepSeek's clients read them, who look at one field of a chunk.
    assert all(len(delta) == 1 for delta in deltas[1:] if "reasoning_content" in delta)
    content = "".join(delta.get("content") or "" for delta in deltas)
    return "".join(thoughts) or None, content, chunks


@pytest.mark.parametrize(("question", "text", "thoughts", "content"), SAID)
async def test_thoughts_of_a_chat(
    thinking: Thinking, question: str, text: str, thoughts: str | None, content: str
) -> None:
    gateway, _, closing = thinking
    text, content = written(thinking, text), written(thinking, content)
    if question == "/no_think" and closing == "[/THINK]":
        # Special tokens that mean nothing here are not shown, as ever.
        content = content.replace("[THINK]", "").replace(closing, "")
    for width in (1, 2, 50):
        token_ids = gateway.say(text, width=width)
        answer = await gateway.answer(CHAT, **asked(question))
        message = answer["choices"][0]["message"]
        assert (message.get("reasoning_content"), message["content"]) == (thoughts, content)
        thinks = question == "/open" or text.startswith(thinking[1])
        expected = count_through(gateway, token_ids, text, closing) if thinks else 0
        details = answer["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] == (expected if question != "/no_think" else 0)
        assert (await streamed(gateway, **asked(question)))[:2] == (thoughts, content)


def count_through(gateway: Gateway, token_ids: Sequence[int], text: str, closing: str) -> int:
    """Returns how many tokens there are up to the closing tag, or in all."""
    if closing not in text:
        return len(token_ids)
    end = text.index(closing) + len(closing)
    decode = gateway.backend.decode
    lengths = range(1, len(token_ids) + 1)
    return next(
        length
        for length in lengths
        if len(decode(list(token_ids[:length]), skip_special_tokens=False)) >= end
    )


async def test_thoughts_of_a_response(thinking: Thinking) -> None:
    gateway = thinking[0]
    token_ids = gateway.say(written(thinking, "(\nSo: a fox.)\n\nThe fox."), width=2)
    response = await gateway.respond(input="Hi")
    thought, message = response.output
    assert (thought.type, thought.status, thought.summary) == ("reasoning", "completed", [])
    assert [(one.type, one.text) for one in thought.content] == [("reasoning_text", "So: a fox.")]
    assert (message.type, response.output_text) == ("message", "The fox.")
    details = response.usage.output_tokens_details
    text = written(thinking, "(\nSo: a fox.)\n\nThe fox.")
    assert details.reasoning_tokens == count_through(gateway, token_ids, text, thinking[2])
    whole = await gateway.answer(CHAT)
    chat = whole["usage"]["completion_tokens_details"]
    assert chat["reasoning_tokens"] == details.reasoning_tokens


async def test_events_of_thoughts(thinking: Thinking) -> None:
    gateway = thinking[0]
    gateway.say(written(thinking, "(So: a fox.)\n\nThe fox."), width=3)
    events = [event async for event in await gateway.respond(input="Hi", stream=True)]
    kinds = [event.type.removeprefix("response.") for event in events]
    once = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert once == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        "completed",
    ]
    thoughts = [event for event in events if "reasoning_text" in event.type]
    assert "".join(event.delta for event in thoughts[:-1]) == thoughts[-1].text == "So: a fox."
    assert {(event.output_index, event.content_index) for event in thoughts} == {(0, 0)}
    assert len({event.item_id for event in thoughts}) == 1
    items = events[-1].response.output
    assert [item.type for item in items] == ["reasoning", "message"]
    async with gateway.client.responses.stream(model="tiny", input="Hi") as stream:
        final: Any = await stream.get_final_response()
    assert final.output[0].content[0].text == "So: a fox."
    assert final.output_text == "The fox."


WEATHER: Any = {"name": "weather", "parameters": {"type": "object"}}
TOOLS: Any = [{"type": "function", "function": WEATHER}]
CALL = '{"tool_calls": [{"name": "weather", "arguments": {"city": "Köln"}}]}'


@pytest.mark.parametrize("width", [1, 3, 100])
async def test_calls_come_after_thoughts(thinking: Thinking, width: int) -> None:
    gateway = thinking[0]
    gateway.say(written(thinking, f"(I call {CALL} now)\n\n{CALL}"), width=width)
    choice = (await gateway.chat(tools=TOOLS)).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.reasoning_content == f"I call {CALL} now"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.function.arguments == '{"city": "Köln"}'
    response = await gateway.respond(tools=[{"type": "function", **WEATHER, "strict": None}])
    assert [item.type for item in response.output] == ["reasoning", "function_call"]
    gateway.say(written(thinking, f"(I call {CALL} now)\n\nNo."), width=width)
    choice = (await gateway.chat(tools=TOOLS)).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", "No.")
    assert choice.message.tool_calls is None


async def test_a_grammar_begins_after_thoughts(thinking: Thinking) -> None:
    gateway = thinking[0]
    form: Fields = {"response_format": {"type": "json_object"}}
    gateway.say("{}")
    starts = {}
    for question in ("Hi", "/open", "/no_think"):
        await gateway.answer(CHAT, **asked(question), **form)
        starts[question] = gateway.adds[-1].sampling.grammar.split("\n")[0]
    assert starts["Hi"] == "start: (thoughts SPACE?)? answer"
    assert starts["/open"] == "start: thoughts SPACE? answer"
    assert starts["/no_think"].startswith("start: %json")
    # Choices that are all shorter say nothing of how long the model thinks.
    choices: Fields = {"structured_outputs": {"choice": ["a", "b"]}, "min_tokens": 9}
    await gateway.answer(CHAT, **asked("/open"), **choices)
    await gateway.refused(CHAT, **asked("/no_think"), **choices)


async def test_what_is_not_a_chat_is_as_the_model_writes_it(thinking: Thinking) -> None:
    gateway = thinking[0]
    text = written(thinking, "(A)B")
    shown = text if thinking[1] == "<think>" else "AB"
    gateway.say(text)
    answer = await gateway.answer(COMPLETIONS)
    assert answer["choices"][0]["text"] == shown
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    async with AsyncClient(gateway.grpc_address, timeout=20) as client:
        result = await client.generate([ChatMessage("user", "/open")], model="tiny").result()
    assert result.text == shown


async def test_log_probabilities_and_sources_are_of_all_tokens(thinking: Thinking) -> None:
    gateway = thinking[0]
    text = written(thinking, "(A)\n\nThe fox.")
    token_ids = gateway.say(text, width=2)
    extra: Fields = {"include_provenance": True, "return_token_ids": True}
    choice = (await gateway.answer(CHAT, logprobs=True, **extra))["choices"][0]
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) == len(token_ids)
    # Where the text came from is said of all that the model wrote, tags included.
    assert "".join(segment["text"] for segment in choice["provenance"]) == text
    chunks = await gateway.chunks(CHAT, logprobs=True, **extra)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert sum(len((one["logprobs"] or {}).get("content", [])) for one in choices) == len(token_ids)
    sources = [one for choice in choices for one in choice.get("provenance", [])]
    assert "".join(segment["text"] for segment in sources) == text
    # Those of a response's message are of its own text.
    response = await gateway.answer(
        RESPONSES, include=["message.output_text.logprobs"], top_logprobs=0
    )
    (part,) = response["output"][1]["content"]
    num_thoughts = response["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert len(part["logprobs"]) == len(token_ids) - num_thoughts


async def test_predictions_begin_after_thoughts(thinking: Thinking) -> None:
    gateway, _, closing = thinking
    expected = "The quick brown fox"
    prediction = {"prediction": {"type": "content", "content": expected}}
    own = gateway.backend.encode(expected).ids
    gateway.say("ok")
    for question in ("Hi", "/open"):
        await gateway.answer(CHAT, **asked(question), **prediction)
        sent = tokens(gateway.adds[-1].predicted_token_ids)
        end = sent[: -len(own)]
        assert sent[-len(own) :] == own
        text = gateway.backend.decode(end, skip_special_tokens=False)
        assert text == closing + ("\n\n" if closing == "</think>" else "")
    await gateway.answer(CHAT, **asked("/no_think"), **prediction)
    assert tokens(gateway.adds[-1].predicted_token_ids) == own
    await gateway.answer(COMPLETIONS, **prediction)
    assert tokens(gateway.adds[-1].predicted_token_ids) == own


async def test_tags_of_a_vocabulary_alone_move_no_prediction(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Models that do not think have them too, as those of Qwen's coders."""
    directory = tmp_path_factory.mktemp("coder") / "tiny"
    save_model(directory, 512, "{{ messages[0].content }}\n")
    backend = Backend.from_file(str(directory / "tokenizer.json"))
    backend.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS[ADDED]])
    backend.save(str(directory / "tokenizer.json"))
    prediction = {"prediction": {"type": "content", "content": "The quick"}}
    async with starting(directory, load_tokenizer(str(directory)), backend) as gateway:
        gateway.say("<think>A</think>\n\nB")
        message = (await gateway.answer(CHAT, **prediction))["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("A", "B")
        own = backend.encode("The quick").ids
        assert tokens(gateway.adds[-1].predicted_token_ids) == own
        await gateway.answer(CHAT, **asked("Hi<think>"), **prediction)
        sent = tokens(gateway.adds[-1].predicted_token_ids)
        assert (sent[0], sent[-len(own) :]) == (backend.token_to_id("</think>"), own)


async def test_spans_of_predictions_are_of_what_the_client_sent(thinking: Thinking) -> None:
    gateway, _, closing = thinking
    expected = "The quick brown fox"
    own = gateway.backend.encode(expected).ids
    num_added = len(gateway.backend.encode(closing + "\n\n").ids)
    if closing != "</think>":
        num_added = len(gateway.backend.encode(closing).ids)
    gateway.say(closing + ("\n\n" if closing == "</think>" else "") + expected, width=100)
    (step,) = gateway.scheduler.script.steps
    places = list(range(num_added + len(own)))
    script = gateway.scheduler.script
    script.steps = [
        type(step)(
            step.token_ids, len(places), positions=places, prompt_positions=[0] * len(places)
        )
    ]
    for sent, span in (
        ({"prediction": {"type": "content", "content": expected}}, {"start": 0, "end": 19}),
        ({"predicted_token_ids": own}, {"token_start": 0, "token_end": len(own)}),
    ):
        answer = await gateway.answer(CHAT, **asked("/open"), **sent, include_provenance=True)
        segments = answer["choices"][0]["provenance"]
        assert [segment.get("prediction") for segment in segments] == [
            *(None, {"index": 0, **span}, None)
        ]
        assert segments[1]["text"] == expected
