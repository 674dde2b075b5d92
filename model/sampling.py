"""Sample text from a model."""

import torch
from torch import Tensor

from model.transformer import Transformer


@torch.no_grad()
def sample(model: Transformer, tokens: Tensor, n_tokens: int, *, seed: int) -> Tensor:
    """Return `tokens` [T], at least one, followed by up to `n_tokens` that the model samples.

    The model, in eval mode, reads the last context_length tokens. PyTorch's global random state is not used. Stops at
    logits that are not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n_tokens):
        context = tokens[None, -model.config.context_length :]  # [1, T]
        logits = model(context)[0, -1].float().cpu()  # [V]
        if logits.isnan().any() or logits.isposinf().any():
            break
        token = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, token.to(tokens.device)])
    return tokens
