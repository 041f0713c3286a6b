"""Features of the last pass, and of no other."""

import pytest
import torch
from torch import nn

from optimist_worker.model.model import FeatureTap


class Layer(nn.Module):
    def forward(self, hidden: torch.Tensor, factor: float) -> tuple[torch.Tensor]:
        if factor < 0:
            raise RuntimeError("no memory")
        return (hidden * factor,)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer(), Layer()])

    def forward(self, hidden: torch.Tensor, *factors: float) -> torch.Tensor:
        for layer, factor in zip(self.layers, factors, strict=True):
            (hidden,) = layer(hidden, factor)
        return hidden


class Decoder:
    def __init__(self) -> None:
        self.base_model = Base()


HIDDEN = torch.ones(1, 2, 3)


def test_the_last_hidden_state() -> None:
    decoder = Decoder()
    tap = FeatureTap(decoder, None)
    decoder.base_model(HIDDEN, 2.0, 3.0, 5.0)
    assert torch.equal(tap.take(), torch.full((2, 3), 30.0))


def test_outputs_of_layers_lie_one_after_the_other() -> None:
    decoder = Decoder()
    tap = FeatureTap(decoder, (0, 2))
    decoder.base_model(HIDDEN, 2.0, 3.0, 5.0)
    assert tap.take()[0].tolist() == [2.0] * 3 + [30.0] * 3


@pytest.mark.parametrize("layers", [None, (0, 1)])
def test_a_pass_that_failed_leaves_nothing(layers: tuple[int, ...] | None) -> None:
    decoder = Decoder()
    tap = FeatureTap(decoder, layers)
    with pytest.raises(RuntimeError):
        decoder.base_model(HIDDEN, 2.0, 3.0, -1.0)
    decoder.base_model(HIDDEN, 1.0, 1.0, 1.0)
    assert torch.equal(tap.take()[:, :3], HIDDEN[0])
