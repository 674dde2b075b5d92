"""python train.py: what of each probe is kept and drawn while a model learns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

    from data.corpus import Corpus
    from model.transformer import Transformer
    from probe.emergence import Glimpse
    from probe.snapshots import Film
    from training.logging import Recorder


def showcase_film(corpus: Corpus, context_length: int) -> Film | None:
    """Return the sentences that are looked at again at every probe; None where the model can read none of them."""
    from data.stories.lint import word_spans
    from data.tokenizer import unknown_id, with_end
    from probe.sentences import Sentence
    from probe.snapshots import choose_film

    def cut(text: str) -> Sentence:
        return Sentence(*with_end(corpus.tokenizer, text), word_spans(text))

    film = choose_film(cut, unknown_id(corpus.tokenizer), context_length)
    return film if film.asked else None


def keep_attention(recorder: Recorder, step: int, film: Film, model: Transformer) -> list[np.ndarray]:
    """Write down, and return, what every head of `model` (in eval mode) makes of each sentence: [L, H, T, T].

    The global random state is left alone.
    """
    from probe.snapshots import FILM, frame, shoot

    weights = shoot(model, film)
    recorder.keep(FILM, step, frame(weights))
    return weights


def show_heads(recorder: Recorder, step: int, glimpses: list[Glimpse]) -> None:
    """Draw the map of heads of each question: how often each prefers the antecedent, and by how much."""
    import numpy as np

    from report.picture import head_map

    for one in glimpses:
        recorder.board.image(step, f"probe/{one.name}", head_map(one.accuracy, one.accuracy))
        odds = np.exp(
            np.clip(-one.pronoun_contrast, None, 700)
        )  # beyond, of a model gone astray, there are no such numbers
        recorder.board.image(step, f"probe/{one.name}_pronoun_contrast", head_map(1 / (1 + odds), one.pronoun_contrast))


def show_cells(recorder: Recorder, step: int, film: Film, every: list[np.ndarray], best: Glimpse) -> None:
    """Draw what the best head of a question makes of the four cells of it→cat; `every`: of `keep_attention`."""
    from probe.sentences import FOUR_CELLS
    from report.picture import four_cells, panel

    seen = zip(film.asked, film.layouts, every, strict=True)
    panels = [panel(one, how, weights[best.layer, best.head]) for one, how, weights in seen if one in FOUR_CELLS]
    if panels:
        caption = f"step {step}   head L{best.layer}H{best.head}, the best at {best.name}"
        recorder.board.image(step, "it_to_cat/best_head", four_cells(panels, caption))


def show_embedding(run: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    """Lay out the embeddings of the stories' words in TensorBoard's projector, coloured by kind."""
    from data.kinds import kind_of
    from training.board import write_embedding

    words = [tokenizer.id_to_token(i) or "" for i in range(model.vocab_size)]
    rows = model.token_embedding.weight.detach().float().cpu().numpy()
    write_embedding(run, rows, {"word": words, "kind": [kind_of(word) for word in words]})
