"""A slot has the parameters of its request, and the host knows what a step needs of them."""

import numpy as np
import torch

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.sampling_table import Needs, SamplingTable

CPU = torch.device("cpu")
NOTHING = Needs(False, False, False, False, 0, False, False)


def table_of(*params: SamplingParams, vocab_size: int = 50) -> SamplingTable:
    table = SamplingTable(len(params), vocab_size, CPU)
    for slot, param in enumerate(params):
        table.set(slot, param)
    return table


def test_the_host_knows_what_a_step_needs() -> None:
    table = table_of(
        SamplingParams(),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=1.0, top_k=7, top_p=0.9),
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.0, min_p=0.1, frequency_penalty=0.1),
        SamplingParams(logit_bias={3: 1.0}),
        SamplingParams(temperature=1.0, top_k=50),
        SamplingParams(top_k=3, top_p=0.5, min_p=0.5, presence_penalty=1.0),
    )
    sampled = NOTHING._replace(processes=True, samples=True)
    assert table.needs([]) == table.needs([0, 9]) == NOTHING
    assert table.needs([0, 1]) == table.needs([7]) == sampled
    assert table.needs(np.array([1, 2])) == sampled._replace(cut_width=5)
    assert table.needs([2, 3]) == sampled._replace(cut_width=7, cuts_top_p=True)
    assert table.needs([2, 4]) == sampled._replace(cut_width=50, cuts_top_p=True)
    assert table.needs([5]) == sampled._replace(penalizes=True, cuts_min_p=True)
    assert table.needs([6, 0]) == NOTHING._replace(processes=True, biases=True)
    # What is greedy is not cut, and keeps its penalties.
    assert table.needs([8]) == NOTHING._replace(processes=True, penalizes=True)
    assert table.gather(torch.tensor([0, 1, 8])).takes_argmax.tolist() == [True, False, False]
