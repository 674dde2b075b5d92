"""Every initial weight, in one table.

| weights                         | start                  | why                                                   |
|---------------------------------|------------------------|-------------------------------------------------------|
| token_embedding (also unembeds) | normal, std 0.02       | GPT-2 (Radford et al. 2019)                           |
| position_embedding, if learned   | normal, std 0.02       | as the tokens                                         |
| query, key, value, gate, up     | normal, std 1/sqrt(D)  | outputs about as large as the normalised input        |
| attention.output, mlp.down      | zero                   | blocks start as identity (Zhang et al., 1901.09321)   |
| norms                           | one                    | a plain RMSNorm                                       |
| shift, if there is one           | zero                   | begins as a model without it                          |
"""

import torch
from torch import nn

EMBEDDING_STD = 0.02


def initialise(model: nn.Module, seed: int) -> None:
    """Fill every parameter of a `Transformer` by the table, from `seed` alone: the global random state is untouched."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if name.endswith("gain"):
                parameter.fill_(1.0)
            elif name.endswith(("output.weight", "down.weight", "shift")):
                parameter.zero_()
            else:
                std = EMBEDDING_STD if name.endswith("_embedding.weight") else parameter.shape[1] ** -0.5
                parameter.normal_(0.0, std, generator=generator)
