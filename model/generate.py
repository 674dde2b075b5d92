"""Generate text from a run: `python -m model.generate run=DIR prompt="One sunny day,"`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from data.errors import UserError, printable
from data.tokenizer import UNKNOWN
from model.transformer import Transformer


@torch.no_grad()
def generate(
    model: Transformer, tokens: Tensor, n_tokens: int, *, temperature: float, seed: int, end: int | None = None
) -> Tensor:
    """Return `tokens` [T], at least one, followed by up to `n_tokens` sampled tokens.

    The model, in eval mode, reads the last context_length tokens. `temperature` divides the logits; 0 takes the most
    probable token. PyTorch's global random state is not used. Stops before the token `end`, if given, and at logits
    that are not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n_tokens):
        # The distribution of the next token.
        context = tokens[None, -model.config.context_length :]  # [1, T]
        logits = model(context)[0, -1].float().cpu()  # [V]
        if logits.isnan().any() or logits.isposinf().any():
            break

        # Its most probable token, or one at random.
        if temperature == 0:
            token = logits.argmax()[None]
        else:
            token = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        if token.item() == end:
            break
        tokens = torch.cat([tokens, token.to(tokens.device)])
    return tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateSettings:
    """Generate text from a run.

    python -m model.generate [NAME=VALUE ...]

    run          directory of the run (default: the newest)
    prompt       text to continue (default: empty, a new text)
    n_tokens     maximum number of new tokens (default: 64)
    temperature  divides the logits; 0 takes the most probable token (default: 1.0)
    seed         of the samples (default: 0)
    """

    run: str | None = None
    prompt: str = ""
    n_tokens: int = 64
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_tokens < 1:
            raise UserError(f"n_tokens={self.n_tokens}: must be 1 or more")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed={self.seed}: must be at least 0 and below 2**32")
        if self.temperature != 0 and not 0.01 <= self.temperature <= 100:
            raise UserError(f"temperature={self.temperature}: must be 0 or between 0.01 and 100")


def main(arguments: Sequence[str]) -> None:
    """Print a generated text."""
    # A command line needs training and probe, which are above the package `model`.
    from antecedent_lab.opened import open_run
    from training.command_line import one_line_errors
    from training.run_dir import find_run
    from training.settings import settings_from_arguments

    with one_line_errors():
        settings = settings_from_arguments(GenerateSettings, arguments)
        opened = open_run(find_run(settings.run), torch.device("cpu"))
        prompt = opened.tokenizer.encode(settings.prompt)
        if UNKNOWN in prompt.tokens:
            print(f"note: the prompt has words outside the vocabulary; the model reads {UNKNOWN}", file=sys.stderr)
        if not opened.transformer.config.is_causal:
            print("note: model.mask=none: a model that was trained to see its targets cannot write", file=sys.stderr)

        # A text begins with the start token and ends before the next one.
        tokens = torch.tensor([opened.bos_id, *prompt.ids])
        options = {"temperature": settings.temperature, "seed": settings.seed, "end": opened.bos_id}
        tokens = generate(opened.transformer, tokens, settings.n_tokens, **options)
        print(printable(opened.tokenizer.decode(tokens.tolist())))  # a text may hold terminal control characters


if __name__ == "__main__":
    main(sys.argv[1:])
