"""Train small transformers and find the attention head that links a pronoun to its antecedent."""
