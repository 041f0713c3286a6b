"""Sampling parameters between messages and plain values."""

from optimist.common.v1 import sampling_pb2
from optimist_common.columns import floats_from_bytes, floats_to_bytes, from_bytes, to_bytes
from optimist_common.sampling import SamplingParams


def read_sampling(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """Reads a message; raises ValueError, naming the field, if a column is none."""
    token_ids = message.logit_bias_token_ids
    try:
        biased = from_bytes(token_ids).tolist()
    except ValueError:
        raise ValueError(
            f"sampling.logit_bias_token_ids: {len(token_ids)} bytes are no int32 column"
        ) from None
    try:
        biases = floats_from_bytes(message.logit_bias_values).tolist()
    except ValueError:
        size = len(message.logit_bias_values)
        raise ValueError(
            f"sampling.logit_bias_values: {size} bytes are no float32 column"
        ) from None
    if len(biases) != len(biased):
        raise ValueError(
            f"sampling.logit_bias_values: {len(biases)} values for {len(biased)} token ids"
        )
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p or 1.0,
        min_p=message.min_p,
        seed=message.seed,
        repetition_penalty=message.repetition_penalty or 1.0,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=dict(zip(biased, biases, strict=True)),
        grammar=message.grammar,
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        num_prompt_logprobs=(
            message.num_prompt_logprobs if message.HasField("num_prompt_logprobs") else None
        ),
    )


def write_sampling(params: SamplingParams) -> sampling_pb2.SamplingParams:
    """Writes a message."""
    return sampling_pb2.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias_token_ids=to_bytes(list(params.logit_bias)),
        logit_bias_values=floats_to_bytes(list(params.logit_bias.values())),
        grammar=params.grammar,
        num_logprobs=params.num_logprobs,
        num_prompt_logprobs=params.num_prompt_logprobs,
    )
