"""What eval.py can be asked for, one file a command, and what train.py shows; the doors keep Hydra and the choice."""
