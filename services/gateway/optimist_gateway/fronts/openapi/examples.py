"""Examples of requests, for the OpenAPI document; the model's name is added to each."""

from typing import Any

_CODE = "def area(radius):\n    return 3.14 * radius**2\n"
_MESSAGES = [{"role": "user", "content": "Rename radius to r."}]
_SCHEMA = {
    "type": "object",
    "properties": {"r": {"type": "number"}},
    "required": ["r"],
    "additionalProperties": False,
}

EXAMPLES: dict[str, dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": {
        "prediction": {
            "messages": _MESSAGES,
            "max_completion_tokens": 64,
            "prediction": {"type": "content", "content": _CODE},
        },
        "stream": {
            "messages": _MESSAGES,
            "max_completion_tokens": 64,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        "structure": {
            "messages": _MESSAGES,
            "max_completion_tokens": 64,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "circle", "schema": _SCHEMA, "strict": True},
            },
        },
        "tools": {
            "messages": _MESSAGES,
            "max_completion_tokens": 64,
            "tools": [
                {"type": "function", "function": {"name": "draw_circle", "parameters": _SCHEMA}}
            ],
            "tool_choice": "auto",
        },
    },
    "/v1/completions": {
        "prediction": {
            "prompt": _CODE,
            "max_tokens": 64,
            "prediction": {"type": "content", "content": _CODE},
            "include_speculation": True,
        },
        "logprobs": {"prompt": ["def f(", "class A"], "max_tokens": 8, "logprobs": 2},
    },
    "/v1/responses": {
        "prediction": {
            "input": "Rename radius to r.",
            "instructions": "Answer with code.",
            "max_output_tokens": 64,
            "prediction": {"type": "content", "content": _CODE},
        },
        "items": {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
            "max_output_tokens": 64,
            "stream": True,
        },
    },
    "/tokenize": {
        "text": {"prompt": _CODE, "return_token_strs": True},
        "chat": {"messages": _MESSAGES},
    },
    "/detokenize": {"tokens": {"tokens": [0, 1, 2]}},
}
"""For each path requests by name."""
