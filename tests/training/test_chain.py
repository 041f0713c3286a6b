"""Chains from every position at once are what a head would draft step by step from each."""

import torch
from transformers import LlamaConfig

from optimist_training.drafters.eagle_training import NAME, Chain
from optimist_worker.drafters.heads.eagle import EagleHead, FusedLayer

SIZE, VOCAB, T, LEVELS = 32, 20, 7, 3


def small_head(num_layers: int) -> EagleHead:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=SIZE,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=num_layers,
    )
    first = FusedLayer(config, bias=True)
    embedding, output = torch.randn(VOCAB, SIZE), torch.randn(VOCAB, SIZE)
    head = EagleHead(config, first, embedding, output, vocab_size=VOCAB).double()
    head.requires_grad_(False)
    return head


def test_levels_equal_step_by_step_drafting() -> None:
    head = small_head(2)
    token_ids = torch.randint(0, VOCAB, (1, T + LEVELS))
    features = torch.randn(1, T, SIZE, dtype=torch.float64)
    head.set_attn_implementation(NAME)
    chain, states, levels = Chain(), features, []
    for level in range(LEVELS):
        positions = torch.arange(T)[None] + level
        states = head.run(token_ids[:, level : level + T], positions, states, chain=chain)
        levels.append(states)

    head.set_attn_implementation("sdpa")
    for start in range(T):
        inputs, own = features[:, : start + 1], []
        for _ in range(LEVELS):
            length = inputs.shape[1]
            output = head.run(
                token_ids[:, :length], torch.arange(length)[None], inputs, attention_mask=None
            )
            own.append(output[0, -1])
            inputs = torch.cat([inputs, output[:, -1:]], dim=1)
        expected = torch.stack(own)
        found = torch.stack([level[0, start] for level in levels])
        torch.testing.assert_close(found, expected)
