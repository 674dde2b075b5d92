"""Write docs/questions/induction.jsonl: does a head look at the word that came after this one before?

    python -m research.induction                 writes the question
    python -m research.induction text FILE       writes a text in which such heads form: words at random, then again
    python train.py data=text data.path=FILE out=runs/induction
    python eval.py run=runs/induction items=docs/questions/induction.jsonl

Each item is words at random, "... tin cat fan ... log dog hill ... tin", and ends with one of two cues. What followed
the cue is meant (Olsson et al. 2022, arXiv 2209.11895); the other cue and its word are the distractor. The words are
in the stories and are one token each in SmolLM2.
"""

import json
import sys
from pathlib import Path

import numpy as np

FILE = Path(__file__).parent.parent / "docs" / "questions" / "induction.jsonl"
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
N_FRAMES, N_WORDS = {"dev": 12, "test": 24}, {"dev": 15, "test": 24}  # words of each side; two blocks a word
N_DOCUMENTS = 60_000  # with 8,000, read about ten times, no head formed in 500 steps (seed 1)
N_FILLERS = (2, 4)  # words at random before, between and after the pairs


def lines() -> list[dict[str, object]]:
    """Return the header of the file and its blocks."""
    rng = np.random.default_rng(0)
    words = rng.permutation(WORDS).tolist()
    header: dict[str, object] = {
        "question": "induction", "head_type": "induction",
        "description": "the same word again: what followed it the first time",
    }  # fmt: skip
    blocks = [header]
    for part, n_words in N_WORDS.items():
        first, second, cues = ([words.pop() for _ in range(n)] for n in (n_words, n_words, 2 * N_FRAMES[part]))
        for i in range(2 * n_words):
            frame = i % N_FRAMES[part]
            pair = first[i % n_words], second[(i + 5 * (i // n_words)) % n_words]
            one, two = cues[2 * frame : 2 * frame + 2]
            local = np.random.default_rng([frame, n_words])  # the fillers of a frame are the same in each of its blocks
            gaps = [" ".join(local.choice(words, local.integers(*N_FILLERS, endpoint=True), False)) for _ in range(3)]
            orders = [(one, two), (two, one)]
            patterns = [
                f"{gaps[0]} {left} {{A}} {gaps[1]} {right} {{B}} {gaps[2]} <{one}|{two}> [{{X}}]"
                for left, right in orders
            ]
            blocks.append({"pattern": patterns, "words": pair, "frame": f"{one} {two}", "split": part})
    return blocks


def text() -> str:
    """Return documents of 6 to 19 words at random, of which the last half or more comes again in the same order."""
    rng = np.random.default_rng(1)
    documents = []
    for _ in range(N_DOCUMENTS):
        n_words = int(rng.integers(6, 20))
        words = rng.choice(WORDS, n_words, replace=False)
        documents.append(" ".join([*words, *words[rng.integers(n_words // 2) :]]))
    return "\n\n".join(documents) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["text"]:
        Path(sys.argv[2]).write_text(text())
    else:
        FILE.write_text("".join(json.dumps(line) + "\n" for line in lines()))
