"""Random requests: each is a function of a seed, of its number and of the model."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from optimist_training.data.edits import Edit, unseen_edits
from optimist_worker.core.recurrence.layers import LAYER_TYPES
from tests.chaos.load.answer import Answer
from tests.chaos.load.case import Case
from tests.chaos.load.grpc_call import is_in_grpc
from tests.fuzz.form import Form, draw_form, long_form
from tests.fuzz.server import is_tight

_NUM_EDITS = 12
_LENGTHS = (1, 4, 16, 24, 32, 48, 64)
_TIGHT_LENGTHS = (4, 24, 64, 160, 160)
LONGEST = 960
"""Tokens of a long answer."""
_PROSE = (
    "Name three colours, with commas between them.",
    "Write one sentence about the sea. Then write it again, and again.",
    "日本語で短い挨拶を書いてください。",
    'Answer in JSON: a "name" and a "text" about a dog called "🎉 Rex".',
    "Once upon a time",
    "def area(width, height):\n    return",
)
_STOPS = (" ", "\n", "e", "return", ". ", "。", "def", '"', "}", "🎉", "::")


@dataclass(frozen=True)
class Material:
    """What requests are made of."""

    model: str
    """Its name in the API."""
    end_token_ids: frozenset[int]
    common_ids: Sequence[int]
    """Tokens that answers are likely to have."""
    edits: Sequence[Edit]
    has_heads: bool
    """Whether draft models and heads lie beside the model."""
    is_recurrent: bool = False
    """Whether the model has recurrent layers, so that no copy of it drafts."""


@dataclass(frozen=True)
class Drawn:
    """A request that has no prediction yet."""

    number: int
    case: Case
    form: Form | None
    hint: str
    """How its prediction relates to the answer, see `HINTS`."""
    leave_seconds: float | None
    """After how long its client goes away."""


def load_material(directory: Path, seed: int) -> Material:
    """Reads what is needed of a model."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    text = " ".join(_PROSE) + ' return self, total = {"name": "text"}'
    ends: set[int] = set()
    names = "config.json", "generation_config.json"
    config, generation = (json.loads((directory / name).read_text()) for name in names)
    for found in (config["eos_token_id"], generation["eos_token_id"]):
        ends |= set(found) if isinstance(found, list) else {found}
    return Material(
        model=directory.name,
        end_token_ids=frozenset(ends),
        common_ids=sorted(set(tokenizer.encode(text, add_special_tokens=False).ids)),
        edits=[one for one in unseen_edits(60, seed) if len(one.before) < 400][:_NUM_EDITS],
        is_recurrent=bool(LAYER_TYPES & set(config.get("layer_types") or ())),
        has_heads=(directory.parent / f"{directory.name}-eagle").exists(),
    )


def draw(seed: int, number: int, material: Material) -> Drawn:
    """Returns request `number` of a seed."""
    rng = random.Random(f"request {seed} {number}")
    lengths = _TIGHT_LENGTHS if is_tight(number) else _LENGTHS
    is_long = rng.random() < 0.03 and not is_tight(number)
    form = long_form() if is_long else draw_form(rng) if rng.random() < 0.45 else None
    is_chat = (form is not None and form.is_chat) or rng.random() < 0.6
    body: dict[str, Any] = {"model": material.model, "return_token_ids": True, "temperature": 0}
    edit = rng.choice(material.edits)
    if is_chat:
        prose = [{"role": "user", "content": rng.choice(_PROSE)}]
        body["messages"] = rng.choice([edit.messages(), prose])
    else:
        body["prompt"] = rng.choice([edit.before, rng.choice(_PROSE), [*material.common_ids[:9]]])
    body |= {"max_tokens": LONGEST if is_long else rng.choice(lengths)}
    body |= form.fields if form else {}
    if not is_long:
        for make in _MAKERS:
            body |= make(rng, body, material)
    if rng.random() < 0.3:
        body["num_speculative_tokens"] = rng.choice([1, 3, 8])
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    name = f"{form.kind if form else 'text'}-{number}"
    case = Case(name, path, body)
    if rng.random() < 0.4 and is_in_grpc(body):
        case = replace(case, protocol="grpc")
    elif rng.random() < 0.6:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    leave_seconds = rng.uniform(0.02, 1.5) if rng.random() < 0.08 else None
    return Drawn(number, case, form, rng.choice([*HINTS]), leave_seconds)


def predict(drawn: Drawn, answer: Answer, seed: int) -> Case:
    """Returns the request with a prediction that is made of its right answer."""
    rng = random.Random(f"prediction {seed} {drawn.number}")
    choice = answer.choices.get(0)
    text, token_ids = (choice.text, choice.token_ids) if choice else (rng.choice(_PROSE), [])
    fields = HINTS[drawn.hint](rng, text, token_ids)
    return replace(drawn.case, body=drawn.case.body | fields)


def _limits(rng: random.Random, body: dict[str, Any], material: Material) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if rng.random() < 0.3:
        most = body["max_tokens"]
        fields["min_tokens"] = min(most, rng.choice([1, 5, max(1, most // 2), most]))
    if rng.random() < 0.2:
        fields["stop"] = rng.sample(_STOPS, rng.randint(1, 3))
    if rng.random() < 0.15:
        fields["stop_token_ids"] = rng.sample(material.common_ids, 3)
    if rng.random() < 0.15:
        fields["ignore_eos"] = True
    return fields


def _sampling(rng: random.Random, body: dict[str, Any], material: Material) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if rng.random() < 0.35:
        fields |= {"temperature": rng.choice([0.5, 1.0, 1.7]), "seed": rng.randrange(2**31)}
        options = {"top_p": rng.choice([0.3, 0.9]), "top_k": rng.choice([1, 5, 40]), "min_p": 0.1}
        fields |= {name: options[name] for name in rng.sample([*options], rng.randint(0, 2))}
    penalties = {"presence_penalty": [-1.0, 2.0], "frequency_penalty": [-0.5, 1.5]}
    penalties |= {"repetition_penalty": [0.8, 1.3]}
    for name, values in penalties.items():
        if rng.random() < 0.1:
            fields[name] = rng.choice(values)
    if rng.random() < 0.2:
        ids = [*rng.sample(material.common_ids, 3), *material.end_token_ids]
        fields["logit_bias"] = {str(one): rng.choice([-100, -3.5, 2, 8, 100]) for one in ids}
    return fields


def _shape(rng: random.Random, body: dict[str, Any], material: Material) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    is_chat = "messages" in body
    if rng.random() < 0.25:
        count = rng.randint(0, 3)
        fields |= {"logprobs": True, "top_logprobs": count} if is_chat else {"logprobs": count}
    if rng.random() < 0.15:
        fields["n"] = rng.randint(2, 3)
    if not is_chat and rng.random() < 0.1:
        fields["echo"] = True
    for name in ("include_provenance", "include_speculation"):
        if rng.random() < 0.15:
            fields[name] = True
    if rng.random() < 0.1:
        fields["cache_salt"] = rng.choice("ab")
    return fields


_MAKERS = (_limits, _sampling, _shape)


def _texts(*texts: str) -> dict[str, Any]:
    several = [{"type": "content", "content": text} for text in texts]
    return {"prediction": several[0] if len(several) == 1 else several}


def _altered(rng: random.Random, text: str) -> str:
    """Returns a text of which something in the middle is another."""
    begin = rng.randint(0, len(text))
    end = min(len(text), begin + rng.randint(0, 12))
    return text[:begin] + rng.choice(["", "x", " total", "日本語", "🎉", "\n\n"]) + text[end:]


HINTS: dict[str, Callable[[random.Random, str, list[int]], dict[str, Any]]] = {
    "nothing": lambda rng, text, ids: {},
    "right": lambda rng, text, ids: _texts(text),
    "begins right": lambda rng, text, ids: _texts(text[: len(text) // 2]),
    "altered": lambda rng, text, ids: _texts(_altered(rng, text)),
    "altered twice": lambda rng, text, ids: _texts(_altered(rng, _altered(rng, text))),
    "wrong": lambda rng, text, ids: _texts(rng.choice(_PROSE) * 4),
    "repeated": lambda rng, text, ids: _texts(text * 3),
    "several": lambda rng, text, ids: _texts(rng.choice(_PROSE), _altered(rng, text), text),
    "tokens": lambda rng, text, ids: {"predicted_token_ids": ids},
    "several in tokens": lambda rng, text, ids: {
        "predicted_token_ids": [ids[1:] + ids[:1], [*ids[: len(ids) // 2], 5, 6], ids]
    },
}
"""Ways of predicting, by the right answer's text and tokens."""
