"""Requests as users make them."""

from typing import Any

from openai import OpenAI, omit

from optimist_client import Client, Message
from tests.chaos.load.case import MODEL_NAME

CODE = 'def area(width, height):\n    """Return the area."""\n    return width * height\n'
PROMPT = f"Rename `width` to `breadth`.\n\n{CODE}"
PREDICTION: Any = {"type": "content", "content": CODE}
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
ANSWER = CODE.replace("width", "breadth")


def ask_rest(url: str, key: str = "none") -> int:
    """Asks for an edit by REST, with and without a prediction; returns the accepted tokens."""
    with OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        answers = [
            client.chat.completions.create(
                model=MODEL_NAME, messages=MESSAGES, temperature=0, prediction=prediction
            )
            for prediction in (omit, PREDICTION)
        ]
    plain, predicted = (answer.choices[0].message.content or "" for answer in answers)
    assert plain == predicted, f"without a prediction {plain!r}, with it {predicted!r}"
    assert ANSWER.strip() in plain, plain
    usage: Any = answers[1].usage
    accepted: int = usage.completion_tokens_details.accepted_prediction_tokens
    assert accepted, "no token of the prediction was accepted"
    return accepted


def ask_grpc(host: str) -> int:
    """Asks for the same edit by gRPC; returns the accepted tokens."""
    with Client(f"{host}:50050", timeout=120.0) as client:
        stream = client.generate([Message("user", PROMPT)], prediction=CODE, temperature=0.0)
        answer = stream.result()
    assert ANSWER.strip() in answer.text, answer.text
    assert answer.usage.accepted_prediction_tokens, "no token of the prediction was accepted"
    return answer.usage.accepted_prediction_tokens
