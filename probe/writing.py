"""A model writes on after a text: one token after the other, each drawn from the probabilities that it gives."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from data.tokenizer import unknown_id
from model.observe import ObservableModel
from settings.errors import UserError

BROKEN = "\ufffd"  # what a tokenizer writes for the first bytes of a character


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn."""

    temperature: float = 0.8  # the logits are divided by it; 0: the most probable token, always
    top_k: int | None = None  # only the most probable tokens are drawn; None: all

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature={self.temperature}: must be 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k={self.top_k}: must be 1 or more")

    def chances(self, logits: Tensor) -> Tensor:
        """Return the probabilities [V], float64, with which the next token is drawn, from its logits [V]."""
        logits = logits.double().cpu()
        if self.temperature == 0:
            return F.one_hot(logits.argmax(), len(logits)).double()
        if self.top_k is not None:
            least = logits.topk(min(self.top_k, len(logits))).values[-1]
            logits = logits.masked_fill(logits < least, -torch.inf)
        return logits.div(self.temperature).softmax(-1)


@torch.no_grad()
def write_on(
    model: ObservableModel,
    tokenizer: Tokenizer,
    begun: tuple[int, ...],
    length: int,
    sampling: Sampling,
    seed: list[int],
) -> Iterator[str]:
    """Yield what the model writes after the tokens `begun`, in pieces of whole characters.

    It ends after `length` tokens, at the end of the text, or with the context of the model, which reads the whole text
    again for each token.
    """
    # Ours and GPT-2 begin a text with the token that ends one; others have one of its own, or end the turn of a chat.
    special = {token for token, about in tokenizer.get_added_tokens_decoder().items() if about.special}
    ends = (special | {begun[0]}) - {unknown_id(tokenizer)}
    rng = np.random.default_rng(seed)
    tokens = list(begun)
    written = tokenizer.decode(tokens[1:])
    while len(tokens) < min(len(begun) + length, model.context_length):
        inputs = torch.tensor([tokens], device=model.device)
        logits = model.logits(inputs, torch.tensor([len(tokens) - 1], device=model.device))[0]
        token = int(rng.choice(len(logits), p=sampling.chances(logits).numpy()))
        if token in ends:
            break
        tokens.append(token)
        whole = tokenizer.decode(tokens[1:])
        if not whole.endswith(BROKEN):
            yield whole[len(written) :]
            written = whole
