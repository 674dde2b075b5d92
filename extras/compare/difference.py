"""The differences of two models of one shape on the same items, for example before and after fine-tuning.

answer      half of the change of the answer margin between the two texts of a pair, in nats
effect      how much of the margin a head moves, in nats: by attention its weights on both mentions change places,
            by edges its edges to the entities are cut
attention   by attention only: contrast of a head, in nats. A head without output keeps it
"""

import numpy as np

from data.pairs import Items
from model.observe import ObservableModel
from probe.config import ProbeConfig
from probe.edits import PASS_ERROR
from probe.outcomes import OUTCOMES
from probe.questions import Question
from probe.results import Change
from probe.statistics import sample_of


def difference(
    before: ObservableModel, after: ObservableModel, items: Items, question: Question, config: ProbeConfig
) -> list[Change]:
    """Return what differs between two models for one question."""
    changes = []
    compared = OUTCOMES[question.outcome].differences((before, after), items, question, config)
    for name, heads, cases, numbers in compared:
        changed = numbers[1] - numbers[0]  # [N, C]
        changed[np.abs(changed) <= PASS_ERROR] = 0  # rounding
        sample = sample_of(cases, changed)
        test = sample.test(config, two_sided=True)
        means = [of_model.mean(axis=0).tolist() for of_model in numbers]
        columns = zip(heads, sample.means(config), *means, test.t.tolist(), test.p.tolist(), strict=True)
        for head, estimate, old, new, t, p in columns:
            changes.append(Change(
                question=question.name, description=question.description, measure=name, head=head,
                before=old, after=new, difference=estimate, t=t, p=p, n=len(changed), smallest_p=test.smallest_p,
            ))  # fmt: skip
    return changes
