"""LiteLLM against a running stack: python litellm_chat.py URL"""

import sys

import litellm

MESSAGES = [{"role": "user", "content": "Rename `a` to `b`.\n\ndef f(a):\n    return a\n"}]
OPTIONS = {
    "model": "hosted_vllm/tiny-edit",
    "api_base": f"{sys.argv[1]}/v1",
    "api_key": "none",
    "messages": MESSAGES,
    "temperature": 0,
    "max_tokens": 24,
    "num_retries": 0,
}

whole = litellm.completion(**OPTIONS)
text = whole.choices[0].message.content
prediction = {"type": "content", "content": "def f(a):\n    return a\n"}
predicted = litellm.completion(**OPTIONS, extra_body={"prediction": prediction})
assert predicted.choices[0].message.content == text
chunks = litellm.completion(**OPTIONS, stream=True)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
try:
    litellm.completion(**OPTIONS | {"temperature": 9})
except litellm.BadRequestError as error:
    if "temperature" not in str(error):
        raise
else:
    raise AssertionError("a temperature of 9 was taken")
