"""What eval.py can be asked for, one file a command; the door keeps Hydra and the choice."""
