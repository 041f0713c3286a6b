"""LangChain against a running stack: python langchain_chat.py URL"""

import sys

from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Answer(BaseModel):
    """What the model is to say."""

    done: bool


OPTIONS = {
    "model": "tiny-edit",
    "base_url": f"{sys.argv[1]}/v1",
    "api_key": "none",
    "temperature": 0,
    "max_retries": 0,
    "max_tokens": 24,
}
PROMPT = "Rename `a` to `b`.\n\ndef f(a):\n    return a\n"

chat = ChatOpenAI(**OPTIONS)
text = chat.invoke(PROMPT).content
prediction = {"type": "content", "content": "def f(a):\n    return a\n"}
assert chat.invoke(PROMPT, prediction=prediction).content == text
assert "".join(chunk.content for chunk in chat.stream(PROMPT)) == text
long = ChatOpenAI(**OPTIONS | {"max_tokens": 800})
structured = long.with_structured_output(Answer, method="json_schema")
assert isinstance(structured.invoke(PROMPT), Answer)
called = long.bind_tools([Answer], tool_choice="Answer", strict=True).invoke(PROMPT)
assert called.tool_calls[0]["name"] == "Answer"
