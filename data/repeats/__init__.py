"""Words at random that come again in the same order: text in which heads learn to look at what followed a word before.

"tin cat log dog hill tin cat log dog hill tin ...": only an earlier place of a word tells which word follows it. Such
induction heads need two layers (Olsson et al. 2022, arXiv 2209.11895).
"""

import numpy as np

from settings.data import RepeatsConfig

# They are in the stories, and each is one token of SmolLM2.
WORDS = """
day once school boy girl night hill time city evening river spring morning winter week village farm park garden noon
home beach street market yard bee crow fox wolf lion eagle cow goat cat dog rabbit whale duck frog seal animal thing
air tiger mouse snake puppy horse pony pig bear child monkey owl love moon grass sun snow road sky wind country
trail news mat alarm car ship tap plane candle door phone truck wheel train bus lamp rocket balloon ball flag swing
pot gate van clock boat bottle bell leaf rug radio cold quiet old early sunny long far near big thin small fat young
gentle warm full green bright calm deep empty blue wrong good kind brave little flat soft tired clean hungry saw
stayed waited stood sat rested hated loved trusted praised climbed found stretched came led passed helped thanked
met painted called drew wrote danced sang knew read visited rang smiled laughed cried shouted jumped swam rolled
sailed lay
""".split()
N_WORDS = 62  # of each document: with its start they fill a context of 64 tokens but for one
VALIDATION_SHARE = 0.02


def repeated(config: RepeatsConfig) -> list[list[str]]:
    """Return the documents for training and those for validation; the same for the same config on every machine."""
    rng = np.random.default_rng(config.seed)
    documents = []
    for _ in range(config.n_documents):
        n_distinct = int(rng.integers(config.fewest_words, config.most_words, endpoint=True))
        words = rng.choice(WORDS, n_distinct, replace=False)
        n_rounds = 1 + -(-N_WORDS // n_distinct)
        rounds = [words if config.same_order else rng.permutation(words) for _ in range(n_rounds)]
        start = int(rng.integers(n_distinct))  # else the first word would tell where the second round begins
        documents.append(" ".join(np.concatenate(rounds)[start : start + N_WORDS]))
    n_validation = round(config.n_documents * VALIDATION_SHARE)
    return [documents[n_validation:], documents[:n_validation]]
