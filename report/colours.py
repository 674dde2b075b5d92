"""The colours of a score, the same wherever Python draws: blue above, white at and orange below the centre.

Blue is for the antecedent and orange against it, here and on the page.

Blue and orange are told apart by every common kind of colour blindness (Okabe & Ito 2008, whose blue and vermillion
these are), and the score is always printed as well.
"""

Colour = tuple[int, int, int]  # red, green and blue, 0 to 255


FOR, WHITE, AGAINST = (0, 114, 178), (255, 255, 255), (213, 94, 0)


BLACK = (0, 0, 0)


def score_colour(score: float, low: float, centre: float, high: float) -> Colour:
    """Return the colour of `score`: orange at `low` and below, white at `centre`, blue at `high` and above."""
    end, full = (FOR, high) if score >= centre else (AGAINST, low)
    share = min(1.0, abs(score - centre) / abs(full - centre)) if full != centre else 0.0
    return mixed(WHITE, end, share)


def mixed(one: Colour, other: Colour, share: float) -> Colour:
    """Return the colour that lies `share` of the way from `one` to `other`."""
    red, green, blue = (round(from_ + share * (to - from_)) for from_, to in zip(one, other, strict=True))
    return red, green, blue


def ink(paper: Colour) -> Colour:
    """Return black or white, whichever can be read better on `paper`: at least 4.5 to 1 on every colour there is."""
    return BLACK if _luminance(paper) + 0.05 > 1.05 * 0.05 / (_luminance(paper) + 0.05) else WHITE


def _luminance(colour: Colour) -> float:
    """Return the relative luminance of WCAG 2, 0 for black and 1 for white."""
    linear = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
