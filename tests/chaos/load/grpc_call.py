"""The same requests over gRPC, through the Python client."""

from collections.abc import Callable
from typing import Any, cast

from optimist_client import AsyncClient, Message, Options, RetryPolicy
from optimist_client.request import Prompt
from tests.chaos.load.answer import Answer

_NOT_ASKED_AGAIN = RetryPolicy(max_retries=0)
_FIELDS = Options.__annotations__.keys() - {"timeout", "prediction", "grammar", "json_schema"}
# Either is so by itself: an answer comes in steps, with its tokens.
_LEFT_OUT = {"stream", "stream_options", "return_token_ids"}


def is_in_grpc(body: dict[str, Any]) -> bool:
    """Tells whether the gRPC API has all that a REST body asks for."""
    try:
        _from_body(body)
    except KeyError:
        return False
    return True


async def generate(
    address: str, body: dict[str, Any], answer: Answer, on_step: Callable[[], None]
) -> None:
    """Asks once for what a REST body asks for; adds what comes to the answer.

    `on_step` is called after each step.

    Raises:
        OptimistError: The call failed.
    """
    prompt, options = _from_body(body)
    client = AsyncClient(address, timeout=None, retries=_NOT_ASKED_AGAIN)
    async with client, client.generate(prompt, **options) as stream:
        async for step in stream:
            answer.take_step(step)
            on_step()
        answer.completion_tokens = (await stream.result()).usage.completion_tokens


def _from_body(body: dict[str, Any]) -> tuple[Prompt, Options]:
    """Returns the arguments of the client; raises KeyError for what gRPC does not have."""
    rest = {name: value for name, value in body.items() if name not in _LEFT_OUT}
    options: dict[str, Any] = {}
    if "messages" in rest:
        prompt: Prompt = [Message(**message) for message in rest.pop("messages")]
        if rest.pop("logprobs", False):
            options["num_logprobs"] = rest.pop("top_logprobs", 0)
    else:
        prompt = rest.pop("prompt")
        if "logprobs" in rest or (isinstance(prompt, list) and not isinstance(prompt[0], int)):
            raise KeyError("logprobs")
    given = rest.pop("prediction", None)
    if given is not None:
        several = [given] if isinstance(given, dict) else given
        options["prediction"] = [one["content"] for one in several]
    if "predicted_token_ids" in rest:
        options["prediction"] = rest.pop("predicted_token_ids")
    form = rest.pop("response_format", None)
    if form is not None:
        is_any = form["type"] == "json_object"
        options |= (
            {"json_object": True} if is_any else {"json_schema": form["json_schema"]["schema"]}
        )
    outputs = rest.pop("structured_outputs", None)
    for name, value in (outputs or {}).items():
        options[{"json": "json_schema", "grammar": "grammar"}[name]] = value
    if "logit_bias" in rest:
        options["logit_bias"] = {int(token): bias for token, bias in rest.pop("logit_bias").items()}
    options |= {name: rest.pop(name) for name in _FIELDS & rest.keys()}
    if rest:
        raise KeyError(sorted(rest)[0])
    return prompt, cast("Options", options)
