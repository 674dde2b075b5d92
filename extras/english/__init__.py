"""Questions about English text: which head decides the next pronoun, and whose gender it copies (docs/english.md)."""

from extras.english.edges import EdgeOutcome
from extras.english.questions import NEXT_PRONOUN, WHOSE
from extras.english.whose import WhoseOutcome
from probe.outcomes import OUTCOMES
from probe.questions import QUESTIONS

for outcome in (EdgeOutcome(), WhoseOutcome()):  # in the order of the study
    OUTCOMES[outcome.name] = outcome
for question in (NEXT_PRONOUN, WHOSE):
    QUESTIONS[question.name] = question
