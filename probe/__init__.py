"""Which head links a pronoun to its antecedent, and is that more than chance?"""
