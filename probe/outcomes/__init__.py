"""The outcomes of a question, one file each; other modules iterate over them and know no name."""

from probe.outcomes.attention import Attention
from probe.outcomes.edges import Edges
from probe.outcomes.outcome import Outcome
from probe.outcomes.whose import Whose

_ALL: tuple[Outcome, ...] = (Attention(), Edges(), Whose())
OUTCOMES = {outcome.name: outcome for outcome in _ALL}  # in the order in which they are asked: Whose needs Edges
