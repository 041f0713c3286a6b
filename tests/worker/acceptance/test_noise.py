"""Noise depends on seed, position and token alone, and is Gumbel's."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.acceptance.noise import gumbel, philox

SEEDS = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A),
        ),
    ],
)
def test_philox_has_the_known_answers_of_its_authors(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    assert tuple(int(word) for word in philox((c0, c1, c2, c3), key)) == words


@given(SEEDS, st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), st.integers(1, 40))
def test_noise_depends_on_seed_position_and_token_alone(
    seed: int, positions: list[int], vocab_size: int
) -> None:
    together = gumbel(seed, torch.tensor(positions), vocab_size)
    assert together.shape == (len(positions), vocab_size)
    assert bool(together.isfinite().all())
    for row, position in zip(together, positions, strict=True):
        assert torch.equal(row, gumbel(seed, torch.tensor([position]), vocab_size)[0])


def test_all_bits_of_a_seed_count() -> None:
    noise = [gumbel(seed, torch.tensor([3]), 64) for seed in (5, 5 + 2**32, 5 - 2**63)]
    assert not torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[0], noise[2])


def test_noise_is_gumbel_distributed_and_uncorrelated() -> None:
    noise = gumbel(11, torch.arange(200), 1000)
    euler = 0.5772156649
    assert noise.mean().item() == pytest.approx(euler, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)
    for level in (-1.0, 0.0, 1.0, 3.0):
        share = (noise <= level).double().mean().item()
        assert share == pytest.approx(math.exp(-math.exp(-level)), abs=0.004)
    centered = noise - noise.mean()
    variance = noise.var().item()
    for shifted in (centered.roll(1, 0), centered.roll(1, 1), centered.roll(250, 1)):
        assert abs((centered * shifted).mean().item() / variance) < 0.01
