"""Which head links a pronoun to its antecedent, and whether that is more than luck."""
