"""All outcomes by name, in the order of the study; an extra adds its own."""

from probe.by_attention import AttentionOutcome
from probe.outcome import Outcome

OUTCOMES: dict[str, Outcome] = {AttentionOutcome.name: AttentionOutcome()}
