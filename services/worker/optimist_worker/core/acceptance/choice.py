"""The token that a request with its seed has at a position, whatever was drafted."""

from torch import Tensor

from optimist_worker.core.acceptance.noise import gumbel
from optimist_worker.core.acceptance.processing import cut
from optimist_worker.core.acceptance.sampling_table import Needs, SamplingTable
from optimist_worker.core.operation import Operation


def choose(
    scores: Tensor, positions: Tensor, slots: Tensor, table: SamplingTable, needs: Needs
) -> Tensor:
    """Chooses the largest score plus Gumbel noise of those that the cuts leave, int64 `[n]`.

    That samples from the distribution of the scores (the Gumbel-max trick), and chooses the same
    token for the same seed, position and scores; greedy rows take the largest score. Scores are the
    logits after bias and penalties, `[n, vocab_size]`, and positions those of the tokens chosen.
    The slots say whose parameters hold for each, `[n]`.
    """
    columns = table.gather(slots)
    scores = cut(scores, columns, needs)
    if needs.samples:
        noise = gumbel(columns.seed, positions, scores.shape[-1])
        scores = scores + noise * columns.samples[:, None]
    return scores.argmax(-1)


CHOOSE = Operation(
    "choose",
    choose,
    "optimist_worker.core.acceptance.choice_kernel:choose",
    "optimist_worker.cpu_kernels.launch:choose",
)


def pick(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the largest logit of each row, `[n]`, and its token, int64 `[n]`.

    A logit that is no number is the largest.
    """
    largest, tokens = logits.max(-1)
    return largest, tokens


PICK = Operation("pick", pick, "optimist_worker.core.acceptance.choice_kernel:pick")
