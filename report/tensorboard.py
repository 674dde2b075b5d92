"""Pictures and scores of the probe for TensorBoard, without matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch.utils.tensorboard import SummaryWriter

from probe.emergence import QuestionReading
from probe.sentences import FOUR_CELLS, Example

BLUE, WHITE, ORANGE, GREY, BLACK = (0, 114, 178), (255, 255, 255), (213, 94, 0), (120, 120, 120), (32, 32, 32)
CELL = (44, 26)  # pixels of a head
LINE = 24  # pixels of a sentence
MARGIN = 8
SCORES_SUFFIX = ".probe"  # ending of the event file with a probe's scores
Colour = tuple[int, int, int]


def mixed(colour: Colour, share: float) -> Colour:
    """Return white with `share` of `colour` in it, from 0 to 1."""
    share = min(1.0, max(0.0, share))
    red, green, blue = (round(white + share * (value - white)) for white, value in zip(WHITE, colour, strict=True))
    return red, green, blue


def score_colour(value: float, centre: float, end: float) -> Colour:
    """Return white at `centre`, blue at `end` and above, orange at the same distance below."""
    share = (value - centre) / (end - centre)
    return mixed(BLUE if share >= 0 else ORANGE, abs(share))


def text_colour(background: Colour) -> Colour:
    """Return black or white, whichever is easier to read on `background`."""
    red, green, blue = background
    return BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else WHITE


def head_map(scores: np.ndarray, centre: float = 0.5, end: float = 1.0) -> np.ndarray:
    """Draw a score [L, H] of every head as a coloured cell with its number: [height, width, 3] uint8."""
    n_layer, n_head = scores.shape
    width, height = CELL
    image = Image.new("RGB", (width * (n_head + 1), height * (n_layer + 1)), WHITE)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(12)

    def label(column: int, row: int, text: str, colour: Colour) -> None:
        draw.text((width * (column + 0.5), height * (row + 0.5)), text, colour, font, "mm")

    for head in range(n_head):
        label(head + 1, 0, f"H{head}", GREY)
    for layer in range(n_layer):
        label(0, layer + 1, f"L{layer}", GREY)
        for head in range(n_head):
            colour = score_colour(float(scores[layer, head]), centre, end)
            x, y = width * (head + 1), height * (layer + 1)
            draw.rectangle((x, y, x + width - 2, y + height - 2), colour)
            label(head + 1, layer + 1, f"{scores[layer, head]:.2f}", text_colour(colour))
    return np.asarray(image)


def four_cells(sentences: Sequence[tuple[Example, Sequence[str], np.ndarray]], caption: str) -> np.ndarray:
    """Draw sentences with each word shaded by its weight: antecedent blue, distractor orange, others grey.

    Args:
        sentences: one per line: the example, its words and the attention [W] of one head from the query to each word.
        caption: a line above them.

    Returns:
        [height, width, 3] uint8.

    """
    font = ImageFont.load_default(13)
    image = Image.new("RGB", (760, LINE * (len(sentences) + 1) + MARGIN), WHITE)
    draw = ImageDraw.Draw(image)
    draw.text((MARGIN, LINE / 2), caption, BLACK, font, "lm")
    for line, (example, words, weights) in enumerate(sentences, 1):
        x = float(MARGIN)
        colours = {example.antecedent: BLUE, example.distractor: ORANGE}
        for word, weight in zip(words, weights, strict=True):
            text = f"{word} {weight:.2f}" if word in colours else word
            background = mixed(colours.get(word, GREY), float(weight))
            length = draw.textlength(text, font)
            draw.rectangle((x, LINE * line + 2, x + length + 6, LINE * (line + 1) - 2), background)
            draw.text((x + 3, LINE * (line + 0.5)), text, text_colour(background), font, "lm")
            if word == example.query:
                draw.line((x + 3, LINE * (line + 1) - 4, x + 3 + length, LINE * (line + 1) - 4), BLACK)
            x += length + 10
    return np.asarray(image)


def draw_snapshot(
    readings: Sequence[QuestionReading], examples: Sequence[tuple[Example, Sequence[str], np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the images of one probe during training by TensorBoard tag.

    Args:
        readings: one per question.
        examples: worked examples with their words and the attention between them, [L, H, W, W].

    Returns:
        A map of all heads per question, and the attention of the first question's best head in the four cells.

    """
    images = {}
    for reading in readings:
        images[f"{reading.name}/accuracy of heads"] = head_map(reading.accuracy)
        images[f"{reading.name}/pronoun contrast of heads"] = head_map(reading.pronoun_contrast, centre=0.0, end=2.0)
    first = readings[0]
    cells = [
        (example, words, weights[first.layer, first.head, list(words).index(example.query)])
        for example, words, weights in examples
        if example in FOUR_CELLS
    ]
    if cells:
        caption = f"{first.name}: attention of L{first.layer}H{first.head} from the underlined word"
        images["four cells/best head"] = four_cells(cells, caption)
    return images


def write_scores(run: Path, step: int, selected: Sequence[Mapping[str, Any]], holdout: str) -> None:
    """Write the scores of each question's head into the run's tb/, in place of those of an earlier probe.

    Args:
        run: the run's directory.
        step: that of the probed checkpoint.
        selected: entries of probe.json.
        holdout: whose scores are written.

    """
    for path in (run / "tb").glob(f"*{SCORES_SUFFIX}"):
        path.unlink()
    with SummaryWriter(str(run / "tb"), filename_suffix=SCORES_SUFFIX) as writer:
        for entry in selected:
            tested = entry["test"].get(holdout, {})
            scores = {name: tested.get(name) for name in ("accuracy", "block_accuracy")}
            scores["attention_swap"] = (entry["causal"] or {}).get("attention_swap")
            for name, value in scores.items():
                if value is not None:
                    writer.add_scalar(f"probe/{name} {entry['question']}", value, step)
