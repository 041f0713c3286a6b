"""What the bodies of all generation requests have in common."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from optimist_common.sampling import SamplingParams
from optimist_gateway.api.openai.bodies.base import (
    INT32_MAX,
    Body,
    Content,
    TokenId,
    at_most,
    content_text,
    invalid,
)
from optimist_gateway.api.openai.bodies.structure import (
    FORMS,
    Choices,
    GrammarText,
    Json,
    StructuredOutputs,
    ToolChoiceBody,
    tool_use,
)
from optimist_gateway.core.error import ApiError, Path, naming
from optimist_gateway.core.request import (
    MAX_PREDICTIONS,
    MAX_PRIORITY,
    Conversation,
    JsonContent,
    Request,
    Structure,
)
from optimist_gateway.core.request import Content as StructuredContent

MAX_STOP_STRINGS = 64
MAX_STOP_TOKENS = 128
MAX_BIASES = 1024
MAX_CACHE_SALT_BYTES = 256


def named_tokens(name: str, given: Any) -> dict[str, Any]:
    """Returns lists of tokens, or one such list, by the names of their fields."""
    # There may be very many, but not of both kinds.
    if isinstance(given[0], int):
        return {name: given}
    return {f"{name}[{index}]": one for index, one in enumerate(given)}


def _is_short(text: str) -> str:
    if len(text.encode()) > MAX_CACHE_SALT_BYTES:
        raise ValueError(f"must be at most {MAX_CACHE_SALT_BYTES} bytes")
    return text


# Keys of JSON objects are strings.
_TokenKey = Annotated[int, Field(strict=False)]
_Bias = Annotated[float, Field(ge=-100.0, le=100.0)]
MaxTokens = Annotated[
    int | None,
    Field(ge=1, le=INT32_MAX),
    BeforeValidator(lambda value: None if value == -1 else value),
]
"""An upper bound of an answer's tokens; -1 is none, as for other servers."""
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]


_StopString = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
_StopStrings = Annotated[list[_StopString], Field(fail_fast=True, max_length=MAX_STOP_STRINGS)]


def _stop_strings(value: object) -> object:
    """Returns stop strings as a list, without those that clients leave empty."""
    values = [value] if isinstance(value, str) else value
    return [one for one in values if one not in ("", None)] if isinstance(values, list) else values


class PredictionBody(Body):
    """The expected answer."""

    type: Literal["content"]
    content: Content


Predictions = Annotated[
    Annotated[PredictionBody, Tag("one")]
    | Annotated[
        list[PredictionBody], Field(fail_fast=True, max_length=MAX_PREDICTIONS), Tag("several")
    ],
    Discriminator(lambda value: "several" if isinstance(value, list) else "one"),
]
PredictedTokens = Annotated[
    Annotated[TokenIds, Tag("one")]
    | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_PREDICTIONS), Tag("several")],
    Discriminator(
        lambda one: "several" if isinstance(one, list) and list in map(type, one[:1]) else "one"
    ),
]


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool | None = False
    """Sends the usage in a last chunk without choices."""
    continuous_usage_stats: bool | None = False
    """Sends the usage so far in every chunk (as vLLM does); needs `include_usage`."""


class SamplingFields(Body):
    """How tokens are chosen; `null` is the default everywhere, as in OpenAI's API."""

    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_p: float | None = Field(None, ge=0.0, le=1.0)
    top_k: int | None = Field(None, ge=-1, le=INT32_MAX)
    """Extension: samples from the k most likely tokens; 0 and -1 from all."""
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    """Extension: drops tokens less likely than this share of the most likely one."""
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    repetition_penalty: float | None = Field(None, gt=0.0, le=10.0)
    """Extension: divides positive and multiplies negative logits of tokens seen before."""
    logit_bias: Annotated[
        dict[_TokenKey, _Bias] | None, Field(max_length=MAX_BIASES), at_most(MAX_BIASES)
    ] = None

    def sampling_values(self) -> dict[str, Any]:
        """Returns fields of `Request`: the parameters, where they are not null, and the seed."""
        given = {"temperature": 1.0} | self.given(SamplingFields.model_fields)
        seed = given.pop("seed", None)
        return {
            "sampling": SamplingParams(**given | {"top_k": max(self.top_k or 0, 0)}),
            "seed": seed,
        }


class AnswerFields(Body):
    """How an answer ends, and what is reported of it: fields of all APIs."""

    stop: (
        Annotated[
            _StopStrings,
            BeforeValidator(_stop_strings, json_schema_input_type=str | list[str | None]),
        ]
        | None
    ) = None
    stop_token_ids: list[TokenId] | None = Field(None, fail_fast=True, max_length=MAX_STOP_TOKENS)
    """Extension: further tokens that end the answer; they are not shown."""
    ignore_eos: bool | None = None
    """Extension: goes on after the model's end-of-answer tokens."""
    min_tokens: int | None = Field(None, ge=0, le=INT32_MAX)
    """Extension: tokens before which nothing stops the answer."""
    num_speculative_tokens: int | None = Field(None, ge=0, le=INT32_MAX)
    """Extension: most drafts to verify in one pass, up to the server's limit; 0 verifies none."""
    priority: int | None = Field(None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    """Extension: the smaller, the sooner; only 0 unless the scheduler's policy is `priority`."""
    cache_salt: (
        Annotated[str, StringConstraints(min_length=1), AfterValidator(_is_short)] | None
    ) = None
    """Extension: only requests of the same salt share cached prompts."""
    include_provenance: bool | None = None
    """Extension: adds to every choice and chunk `provenance`, segments of its text by source."""
    include_speculation: bool | None = None
    """Extension: adds `speculation` to the usage: what drafts were worth."""

    def as_request(self, **fields: Any) -> Request:
        """Returns the request that these fields and others make, by their names in `Request`."""
        return Request(**self.given(AnswerFields.model_fields), **fields)


class AnswerBody(SamplingFields, AnswerFields):
    """What the REST endpoints have in common that generate."""

    model: str
    stream: bool | None = None
    prediction: Predictions | None = None
    """The expected answer; extension: a list of several, the most likely one first."""
    predicted_token_ids: PredictedTokens | None = None
    """Extension: the expected answer as tokens, or a list of several, instead of `prediction`."""
    structured_outputs: StructuredOutputs | None = None
    """Extension: the form of the answer's text; vLLM's name for it."""
    guided_json: Json | None = None
    """vLLM's earlier names of the same."""
    guided_regex: GrammarText | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None
    skip_special_tokens: bool | None = None
    """Extension: whether special tokens are left out of the text; null is true."""

    @model_validator(mode="after")
    def _has_one_prediction(self) -> Self:
        if self.prediction is not None and self.predicted_token_ids is not None:
            raise invalid(
                "predicted_token_ids", "prediction and predicted_token_ids must not both be set"
            )
        return self

    def predictions(self) -> dict[str, str | list[int]]:
        """Returns the expected answers, texts or tokens, by the names of their fields."""
        if isinstance(self.prediction, PredictionBody):
            return {"prediction.content": content_text(self.prediction.content)}
        if given := self.predicted_token_ids:
            return named_tokens("predicted_token_ids", given)
        texts = [content_text(one.content) for one in self.prediction or ()]
        return {f"prediction[{index}].content": text for index, text in enumerate(texts)}

    def field_names(self) -> dict[Path, str]:
        """Returns what fields of the request are called here, as `Request.names` does."""
        names: dict[Path, str] = {("sampling",): ""}
        for index, name in enumerate(self.predictions()):
            names[("predictions", index)] = name
        for name in self.structures():
            names[("structure",)] = name
        return names

    def structures(self) -> dict[str, StructuredContent]:
        """Returns the forms of the text that extensions ask for, by the names of their fields."""
        outputs, prefix = self.structured_outputs, "structured_outputs."
        forms = {} if outputs is None else {prefix + name: form for name, form in outputs.forms()}
        guided = self.given(f"guided_{kind}" for kind in FORMS)
        return forms | {
            name: FORMS[name.removeprefix("guided_")](form) for name, form in guided.items()
        }

    def one_structure(
        self, content: StructuredContent | None = None, field: str = "", *, has_calls: bool = False
    ) -> StructuredContent | None:
        """Returns the form of the text: that of an extension, or of another field.

        Raises ApiError for two forms, or for a grammar beside calls.
        """
        forms = self.structures() | ({} if content is None else {field: content})
        name, *others = [*forms, ""]
        fault = f"and {others[0]} must not both be set" if len(forms) > 1 else ""
        if has_calls and name.endswith("grammar"):
            fault = "is only allowed without tools"
        if fault:
            raise ApiError(400, f"{name} {fault}", param=name, code="invalid_value")
        return forms.get(name)

    def as_request(self, **fields: Any) -> Request:
        """See `AnswerFields.as_request`."""
        return super().as_request(
            model=self.model,
            stream=bool(self.stream),
            skip_special_tokens=self.skip_special_tokens is not False,
            **self.sampling_values(),
            predictions=tuple(self.predictions().values()),
            names=self.field_names,
            **fields,
        )

    def conversation_request(
        self,
        conversation: Conversation,
        choice: ToolChoiceBody | None,
        content: StructuredContent | None,
        field: str,
        *,
        is_parallel: bool,
        shown: Mapping[str, str] = MappingProxyType({}),
        **fields: Any,
    ) -> Request:
        """Returns the request of a conversation, as `as_request` does.

        `content` is the form of the text that a field has beside extensions, and `is_parallel`
        whether an answer may have several calls; see also `tool_use`. Raises ApiError if they do
        not fit together.
        """
        with naming(self.field_names):
            tools = tool_use(conversation.tools, choice, shown, is_parallel=is_parallel)
        content = self.one_structure(content, field, has_calls=tools is not None)
        if choice == "none":
            conversation = replace(conversation, tools=())
        if tools is not None and tools.is_required and isinstance(content, JsonContent):
            content = None  # There is no text beside calls.
        return self.as_request(
            prompts=(conversation,),
            structure=Structure(content, tools) if content or tools else None,
            splits_reasoning=True,
            **fields,
        )


class GenerationBody(AnswerBody):
    """What the endpoints take that answer with choices."""

    n: int | None = Field(None, ge=1, le=INT32_MAX)
    """How many answers to give; the server sets a limit."""
    max_tokens: MaxTokens = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    """Extension: adds to every choice `token_ids` (the tokens of the answer or chunk),
    `num_accepted_tokens` (how many of them a proposer had sent ahead, predicted or from the
    request's own text; in a chunk these are the first ones) and `predicted_text_length` (how many
    characters stem from them), and `num_passes` (forward passes that emitted tokens) to the usage.
    In a chunk, text may lag behind tokens by an unfinished character or a possible beginning of a
    stop string."""

    def as_request(self, **fields: Any) -> Request:
        """See `AnswerFields.as_request`."""
        options = self.stream_options or StreamOptions()
        include_usage = bool(options.include_usage)
        return super().as_request(
            n=self.n or 1,
            return_token_ids=bool(self.return_token_ids),
            include_usage=include_usage,
            continuous_usage=include_usage and bool(options.continuous_usage_stats),
            **fields,
        )
