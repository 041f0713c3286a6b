"""What benchmarks cannot do is refused, in one line that names the flag."""

import shlex

import pytest

from optimist_bench.__main__ import main
from optimist_common.errors import SetupError
from tests.stack import BUNDLED_MODEL

ENGINES = f"engines --model {BUNDLED_MODEL}"
PREDICTIONS = f"predictions --tokenizer {BUNDLED_MODEL}/tokenizer.json"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("horse", "no benchmark 'horse'; there are: apply, edits, "),
        (f"{ENGINES} --engines horse", "--engines: there is no 'horse'; there are: optimist, "),
        (f"{ENGINES} --engines ''", "--engines: must name at least one of: optimist, "),
        (f"{ENGINES} --workloads sing", "--workloads: there is no 'sing'; there are: rewrite, "),
        (f"{ENGINES} --streams 1,none", "--streams: must be numbers from 1 to 256"),
        (f"{ENGINES} --dtype int4", "--dtype: Input should be 'float32', 'bfloat16' or 'float16'"),
        ("engines --model /nowhere", "--model: /nowhere is no directory with a config.json"),
        (f"{ENGINES} --files /nowhere", "--files: /nowhere does not exist"),
        (f"{ENGINES} --engines vllm --vllm /x", "--vllm: vllm needs vLLM in /x: make"),
        (f"{ENGINES} --prompts 900", "--files: .* of 600 to 2000 characters; --prompts wants 900"),
        (f"{ENGINES} --report /nowhere", "--report: /nowhere cannot be read"),
        ("apply", "--pairs is required"),
        ("apply --pairs x.jsonl", r"--pairs: cannot read x\.jsonl"),
        ("apply --pairs x.jsonl --api-key k", "--served-model and --api-key: need --url"),
        ("overlap --step-us fast", "--step-us"),
        ("overlap --depths 0", "--depths"),
        (PREDICTIONS, "--pairs is required"),
        (f"{PREDICTIONS} --pairs x.jsonl", r"--pairs: cannot read x\.jsonl"),
        ("predictions --tokenizer x.json --pairs x", r"--tokenizer: no file x\.json"),
        (f"predictions --tokenizer {__file__} --pairs x", "is no tokenizer file"),
        (f"{PREDICTIONS} --method magic", "--method: there is no 'magic'; there are: auto, line"),
        (f"{PREDICTIONS} --window 0", "--window: must be numbers from 1"),
        (f"{PREDICTIONS} --window 8,16 --cases", "--window: one only"),
        (f"{PREDICTIONS} --marginal-cost -1", "--marginal-cost"),
        ("quantization --model /nowhere", "--model: .*the prompts need a tokenizer"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(line: str, message: str) -> None:
    with pytest.raises(SetupError, match=message) as caught:
        main(shlex.split(line))
    assert "\n" not in str(caught.value)
