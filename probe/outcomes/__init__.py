"""The outcomes of a question, one file each; other modules iterate over them and know no name."""

from probe.outcomes.attention import AttentionOutcome
from probe.outcomes.edges import EdgeOutcome
from probe.outcomes.outcome import Outcome
from probe.outcomes.whose import WhoseOutcome

_ALL: tuple[Outcome, ...] = (AttentionOutcome(), EdgeOutcome(), WhoseOutcome())
OUTCOMES = {outcome.name: outcome for outcome in _ALL}  # in the order in which they are asked: whose needs edge
