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
WIDTH = 46  # pixels: width of a column
GAP = 2  # pixels between two coloured boxes
SCALES = {"accuracy": (0.5, 1.0), "contrast": (0.0, 2.0), "swap": (0.0, 1.0)}  # values of white and full colour


def head_map(scores: np.ndarray, centre: float, end: float) -> np.ndarray:
    """Draw a score [L, H] of every head, a row for each layer: [height, width, 3] uint8.

    White at `centre`, blue at `end` and above, orange at the same distance below.
    """
    shares = np.clip((scores - centre) / (end - centre), -1, 1)[..., None]
    full = np.where(shares >= 0, BLUE, ORANGE)
    colours = np.rint(WHITE + abs(shares) * (full - WHITE)).astype(int)  # [L, H, 3]
    n_layers, n_heads = scores.shape
    image = Image.new("RGB", (WIDTH * (n_heads + 1), ROW * (n_layers + 1)), WHITE)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(12)

    # Names of layers and heads, and a box with dark or light text for each head
    for layer in range(n_layers):
        draw.text((WIDTH / 2, ROW * (layer + 1.5)), f"L{layer}", BLACK, font, "mm")
    for head in range(n_heads):
        draw.text((WIDTH * (head + 1.5), ROW / 2), f"H{head}", BLACK, font, "mm")
    for (layer, head), score in np.ndenumerate(scores):
        x = WIDTH * (head + 1)
        y = ROW * (layer + 1)
        red, green, blue = colours[layer, head].tolist()
        draw.rectangle((x, y, x + WIDTH - GAP, y + ROW - GAP), (red, green, blue))
        is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 128
        colour = BLACK if is_light else WHITE
        draw.text((x + WIDTH / 2, y + ROW / 2), f"{score:.2f}", colour, font, "mm")
    return np.asarray(image)


def draw_snapshot(points: Mapping[str, HeadPoint]) -> dict[str, np.ndarray]:
    """Return maps of all heads by tag, one for each question and measure."""
    images = {}
    for place, (name, point) in enumerate(points.items(), 1):
        for measure, grid in point.grids.items():
            images[f"{place}_{name}/{MEASURES[measure].label} of heads"] = head_map(np.array(grid), *SCALES[measure])
    return images
