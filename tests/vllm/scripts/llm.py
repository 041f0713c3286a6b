"""`LLM` of vLLM in Python, with and without a prediction: prints texts and accepted drafts."""

import json
import sys

from vllm import LLM, SamplingParams


def main(model: str, prompt: str, prediction: str) -> None:
    llm = LLM(
        model,
        dtype="float32",
        max_model_len=2048,
        enforce_eager=True,
        disable_log_stats=False,
        speculative_config={"model": "optimist_vllm.Proposer", "num_speculative_tokens": 64},
    )
    found = []
    for extra_args in (None, {"prediction": prediction}):
        params = SamplingParams(temperature=0, max_tokens=400, extra_args=extra_args)
        before = count_accepted(llm)
        (output,) = llm.chat([{"role": "user", "content": prompt}], params, use_tqdm=False)
        found.append([output.outputs[0].text, count_accepted(llm) - before])
    print(json.dumps(found))


def count_accepted(llm: LLM) -> int:
    name = "vllm:spec_decode_num_accepted_tokens"
    return sum(each.value for each in llm.get_metrics() if each.name == name)


if __name__ == "__main__":
    main(*sys.argv[1:])
