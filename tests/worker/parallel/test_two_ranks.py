"""Two ranks that share each layer say what one process says, plan by plan."""

import random

import pytest

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.network.channel import open_channel
from optimist_common.sampling import SamplingParams
from optimist_worker.runner.runner import Runner
from tests.worker.call import PROMPT, plan, read
from tests.worker.parallel.lockstep import Lockstep, Wanted, serve_all
from tests.worker.parallel.ranked_worker import RankedWorker
from tests.worker.step import generate

GRAMMAR = 'start: "{" /[a-z]{2,4}/ (":" /[0-9]{1,3}/)* "}" /[A-Z ]{4,}/'
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=7),
    SamplingParams(temperature=0.8, seed=8, top_k=20, top_p=0.9, frequency_penalty=0.4),
    SamplingParams(temperature=0.7, seed=9, grammar=GRAMMAR),
    SamplingParams(grammar=GRAMMAR, num_logprobs=2),
    SamplingParams(
        temperature=1.2, seed=10, min_p=0.01, repetition_penalty=1.2, logit_bias={9: 2.0}
    ),
    SamplingParams(num_logprobs=3, num_prompt_logprobs=1),
]


@pytest.mark.parametrize("seed", [1, 2])
async def test_texts_are_the_same(lockstep: Lockstep, runner: Runner, seed: int) -> None:
    rng = random.Random(seed)
    requests = []
    for sampling in SAMPLINGS:
        prompt = [rng.randrange(3, 250) for _ in range(rng.randrange(3, 40))]
        requests.append(Wanted(prompt, sampling, generate(runner, prompt, 30, sampling=sampling)))
    runner.release_all()
    assert await serve_all(lockstep, list(requests), seed) > 20
    assert all(wanted.is_done for wanted in requests)


async def test_plans_run_again_by_themselves(lockstep: Lockstep) -> None:
    first = await lockstep.execute(plan(lockstep.next_sequence(), 0, admit=True, num_repeats=3))
    answers = [first] + [await lockstep.read() for _ in range(3)]
    assert [answer.repeat for answer in answers] == [0, 1, 2, 3]
    assert from_bytes(answers[3].lengths).tolist() == [len(PROMPT) + 4]


async def test_what_is_wrong_with_a_request_is_found_alike(lockstep: Lockstep) -> None:
    request = plan(lockstep.next_sequence(), 1, admit=True, tokens=[1, 2, 3, 4, 5000])
    answer = await lockstep.execute(request)
    assert [error.slot for error in answer.errors] == [1]
    release = worker_pb2.ExecuteRequest(
        sequence=lockstep.next_sequence(), released_slots=to_bytes([1])
    )
    assert not (await lockstep.execute(release)).errors


async def test_a_plan_to_a_taken_slot_ends_its_stream_alone(pair: RankedWorker) -> None:
    async with open_channel(pair.address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        call = stub.Execute()
        for sequence in (1, 2):
            await call.write(plan(sequence, 0, admit=True))
        assert (await read(call)).sequence == 1
        assert "admissions.slot: 0 is held" in await call.details()
        again = stub.Execute()
        await again.write(plan(1, 0, admit=True))
        assert len(from_bytes((await read(again)).token_ids)) == 1
        again.cancel()


async def test_the_description_reports_of_one_worker(pair: RankedWorker, runner: Runner) -> None:
    async with open_channel(pair.address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        description = await stub.Describe(worker_pb2.DescribeRequest())
    assert description.vocab_size == runner.engine.model.vocab_size
    assert description.num_blocks == 96
    assert len(description.cost_us) > 0
