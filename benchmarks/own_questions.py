"""Examples of questions of one's own: python -m benchmarks.own_questions FOLDER writes their files.

induction    "red lamp, blue door, then red": does a head attend to "lamp", the word after the first "red"? It is known
             that trained models have such heads (Olsson et al. 2022, arXiv 2209.11895).
er_sie       German: "Der Hund sah die Katze. Er": "Hund".

Frames and words of dev and test differ; their numbers suffice for a small p.
"""

import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

COLOURS = "red blue green black white brown yellow pink".split()
THINGS = (
    "lamp door tree boat cup ring coat desk bell cake fish rose star wall shoe ball "
    "hat key box flag chair horse bird leaf stone rope bag ship book kite drum bowl"
).split()
LISTS = [
    "{}, {}, then {}",
    "First {}, and {}, and again {}",
    "I saw {} and {}. I like {}",
    "We have {} or {}, so {}",
    "{}. {}. {}",
    "They said {}, they said {}, they said {}",
    "Here is {}. There is {}. Take {}",
    "Not {}, not {}, but {}",
    "She drew {} and {} and {}",
    "It was {}, it was {}, it was {}",
    "Now {}; now {}; now {}",
    "{} here, {} there, {}",
    "Look: {} and {}. Yes, {}",
    "Bring {} with {} and then {}",
    "One {}, one {}, one more {}",
    "Is it {} or {}? It is {}",
]
MASCULINE = [("Der", "den", noun) for noun in "Hund Vogel Baum Mann Sohn Tisch Stuhl Wagen".split()]
FEMININE = [("Die", "die", noun) for noun in "Katze Kuh Blume Frau Tochter Lampe Tasche Uhr".split()]
SENTENCES = [f"{{}} {verb} {{}}." for verb in "sah suchte fand mochte hielt brachte nahm rief".split()]


def induction() -> Iterator[dict[str, Any]]:
    """Yield the texts of the question about induction: two things, each after a colour, and one colour again."""
    yield {
        "question": "induction",
        "description": '"red lamp, blue door, then red": the word after the first "red"',
        "link": "a repeated word to the word that followed it",
        "guards_off": ["induction", "rests_without_antecedent"],
    }
    # Half of the frames with half of the things for dev, the others for test.
    half_frames, half_things = len(LISTS) // 2, len(THINGS) // 2
    dev = product(LISTS[:half_frames], range(0, half_things, 2))
    test = product(LISTS[half_frames:], range(half_things, len(THINGS), 2))
    for number, (frame, i) in enumerate([*dev, *test]):
        colours = (COLOURS[(number + i) % 8], COLOURS[(number + i + 3) % 8])
        things = (THINGS[i], THINGS[i + 1])
        for order, meant in product((0, 1), (0, 1)):
            named = [f"{colours[k]} {things[k]}" for k in ((0, 1) if order == 0 else (1, 0))]
            text = frame.format(*named, f"{colours[meant]} {things[meant]}")
            end = text.rindex(colours[meant])
            answer = text.rindex(things[meant])
            spans = [[text.index(thing), text.index(thing) + len(thing)] for thing in things]
            yield {
                "text": text,
                "query": [end, end + len(colours[meant])],
                "antecedents": [spans[meant]],
                "distractors": [spans[1 - meant]],
                "payoff": [answer, answer + len(things[meant])],
                "answers": [things[meant]],
                "foils": [things[1 - meant]],
                "block": number,
                "frame": frame,
                "words": list(things),
                "order": order,
                "meant": meant,
                "split": "dev" if i < half_things else "test",
            }


def er_sie() -> Iterator[dict[str, Any]]:
    """Yield the texts of the question about German pronouns."""
    yield {
        "question": "er_sie",
        "description": '"Der Hund sah die Katze. Er": the noun of the pronoun\'s gender',
        "link": "a pronoun to its noun",
        "guards_off": ["rests_without_antecedent"],
    }
    for number, (frame, he, she) in enumerate(product(SENTENCES, MASCULINE, FEMININE)):
        for order, meant in product((0, 1), (0, 1)):
            subject, other = (he, she) if order == 0 else (she, he)
            pronoun = ("Er", "Sie")[meant]
            text = f"{frame.format(f'{subject[0]} {subject[2]}', f'{other[1]} {other[2]}')} {pronoun}"
            yield {
                "text": text,
                "query": [len(text) - len(pronoun), len(text)],
                "antecedents": [(he, she)[meant][2]],
                "distractors": [(she, he)[meant][2]],
                "block": number,
                "frame": frame,
                "words": [he[2], she[2]],
                "order": order,
                "meant": meant,
            }


QUESTIONS = {"induction": induction, "er_sie": er_sie}


def main() -> None:
    """Write a file for each question to the folder of the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in QUESTIONS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")
        print(folder / f"{name}.jsonl")


if __name__ == "__main__":
    main()
