"""Let a model go on from a prompt: `python -m model.generate run=DIR prompt="One sunny day,"`."""

import torch
from torch import Tensor

from model.transformer import Transformer


@torch.no_grad()
def generate(
    model: Transformer, tokens: Tensor, n_tokens: int, *, temperature: float, seed: int, end: int | None = None
) -> Tensor:
    """Return `tokens` [T] with up to `n_tokens` more, each drawn from the model's own distribution.

    It ends early where that is none: weights that are not finite have been trained to nothing.

    Args:
        model: read as it is; put it in eval mode first.
        tokens: [T] int64, T at least 1; only the last context_length of them are read.
        n_tokens: how many to add at most.
        temperature: divides the logits; 0 takes the likeliest token.
        seed: of the draws; the global random state is left alone.
        end: a token that ends the text when it is drawn; it is not added.

    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n_tokens):
        logits = model(tokens[None, -model.config.context_length :])[0, -1].float().cpu()
        if logits.isnan().any() or logits.isposinf().any():
            break
        if temperature == 0:
            chosen = logits.argmax()[None]
        else:
            chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        if chosen.item() == end:
            break
        tokens = torch.cat([tokens, chosen.to(tokens.device)])
    return tokens


if __name__ == "__main__":  # a door of its own, so only here does the model meet runs and tokenizers
    import sys

    from data.tokenizer import UNKNOWN, end_id
    from probe.open import open_run
    from training.command_line import one_line_errors, printable
    from training.run_dir import find_run
    from training.settings import GenerateConfig, settings_from_arguments

    with one_line_errors():
        asked = settings_from_arguments(GenerateConfig, sys.argv[1:])
        # As eval.py reads it, so that both refuse the same.
        opened = open_run(find_run(asked.run), torch.device("cpu"))
        tokenizer = opened.tokenizer
        end, encoding = end_id(tokenizer), tokenizer.encode(asked.prompt)
        if UNKNOWN in encoding.tokens:
            print(f"note: the model does not know every word of the prompt; those read as {UNKNOWN}", file=sys.stderr)
        if not opened.settings.model.is_causal:
            print(
                "note: model.mask=none: this model was trained to see what it must predict and cannot write",
                file=sys.stderr,
            )
        start = torch.tensor([end, *encoding.ids])
        text = generate(opened.transformer, start, asked.n_tokens, temperature=asked.temperature, seed=asked.seed, end=end)
        print(printable(tokenizer.decode(text.tolist())))  # what a text has taught it may steer a terminal
