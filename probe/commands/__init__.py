"""What eval.py can be asked for, one file a command; the door itself keeps Hydra and the choice between them."""
