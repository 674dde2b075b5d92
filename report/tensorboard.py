"""Pictures of the probe during training for TensorBoard, without matplotlib."""

from collections.abc import Mapping

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from probe.results import MEASURES
from training.metrics import HeadPoint

BLUE = (0, 114, 178)
WHITE = (255, 255, 255)
ORANGE = (213, 94, 0)
BLACK = (32, 32, 32)
ROW = 26  # pixels: height of a row
GAP = 2  # pixels between two coloured boxes
SCALES = {"accuracy": (0.5, 1.0), "contrast": (0.0, 2.0), "swap": (0.0, 1.0)}  # values of white and full colour
Colour = tuple[int, int, int]


def score_colour(value: float, centre: float, end: float) -> Colour:
    """Return white at `centre`, blue at `end` and above, orange at the same distance below."""
    share = max(-1.0, min(1.0, (value - centre) / (end - centre)))
    colour = BLUE if share >= 0 else ORANGE
    channels = zip(WHITE, colour, strict=True)
    red, green, blue = (round(white + abs(share) * (full - white)) for white, full in channels)
    return red, green, blue


def head_map(scores: np.ndarray, caption: str, centre: float, end: float) -> np.ndarray:
    """Draw a score [L, H] of every head, coloured by `score_colour`, a row for each layer: [height, width, 3] uint8."""
    rows = [[("", WHITE), *((f"H{head}", WHITE) for head in range(scores.shape[1]))]]
    for layer, of_layer in enumerate(scores):
        row = [(f"L{layer}", WHITE)]
        for score in of_layer.tolist():
            row.append((f"{score:.2f}", score_colour(score, centre, end)))
        rows.append(row)

    # A column is as wide as its longest text.
    font = ImageFont.load_default(12)
    widths = []
    for column in zip(*rows, strict=True):
        widths.append(max(round(font.getlength(text)) for text, _ in column) + 16)
    width = max(sum(widths), round(font.getlength(caption)) + 16)

    # The caption, then a row of boxes with dark or light text
    image = Image.new("RGB", (width, ROW * (len(rows) + 1)), WHITE)
    draw = ImageDraw.Draw(image)
    draw.text((8, ROW / 2), caption, BLACK, font, "lm")
    for number, row in enumerate(rows, 1):
        x = 0
        y = ROW * number
        for (text, (red, green, blue)), width in zip(row, widths, strict=True):
            draw.rectangle((x, y, x + width - GAP, y + ROW - GAP), (red, green, blue))
            is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 128
            draw.text((x + width / 2, y + ROW / 2), text, BLACK if is_light else WHITE, font, "mm")
            x += width
    return np.asarray(image)


def draw_snapshot(points: Mapping[str, HeadPoint]) -> dict[str, np.ndarray]:
    """Return maps of all heads by tag, one for each question and measure."""
    images = {}
    for name, point in points.items():
        for measure, grid in point.grids.items():
            label = MEASURES[measure].label
            images[f"{name}/{label} of heads"] = head_map(np.array(grid), label, *SCALES[measure])
    return images
