"""Find out which attention head links a pronoun to its antecedent, and whether the finding is real.

    from antecedent_lab import open_model, probe_model

    opened = open_model("runs/mine")   # or a folder of save_pretrained, a name on the hub, or a loaded model
    opened.attention(["The cat sat."]) # arrays of texts; also log_probs, effects of heads, and show
    result = probe_model(opened)
    print(result)                      # as eval.py prints it
    result.save("report")              # writes what eval.py writes

In a checkout this works from its folder, without an installation.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not Path(__file__).with_name("model").is_dir():
    # A checkout. After pip install -e, a user's model.py may be in the current folder.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if TYPE_CHECKING:
    from antecedent_lab.api import compare_models, open_model, probe_model
    from antecedent_lab.arrays import head_test
    from extras.others.own_model import OwnModel
    from model.edits import cut_link, exchange_links, remove_head
    from model.observe import HeadEdit
    from settings.errors import UserError
    from training.metrics import load_metrics

__all__ = [
    "HeadEdit",
    "OwnModel",
    "UserError",
    "compare_models",
    "cut_link",
    "exchange_links",
    "head_test",
    "load_metrics",
    "open_model",
    "probe_model",
    "remove_head",
]


def __getattr__(name: str) -> Any:
    """Import everything when a public name is first used: torch takes seconds, and --help does not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from antecedent_lab import api

    return getattr(api, name)


def __dir__() -> list[str]:
    """Return the public names, which a notebook completes."""
    return __all__
