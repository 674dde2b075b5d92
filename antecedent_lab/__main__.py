"""The commands of the package: antecedent-lab train|eval|export; in a checkout python -m antecedent_lab."""

import sys

from settings.command_line import version_line

USAGE = "usage: antecedent-lab train|eval|export [NAME=VALUE ...]; antecedent-lab train --help lists the settings"


def main() -> None:
    """Run the program that the first argument names; the others are its settings."""
    program = sys.argv.pop(1) if len(sys.argv) > 1 else "--help"
    # Each program imports only its own modules: help needs no torch.
    if program == "train":
        from train import command
    elif program == "eval":
        from eval import command
    elif program == "export":
        from extras.others.export import command
    elif program in ("-h", "--help"):
        print(USAGE)
        return
    elif program == "--version" and not sys.argv[1:]:
        print(version_line())
        return
    else:
        print(f"error: {' '.join([program, *sys.argv[1:]])}: no such command; {USAGE}", file=sys.stderr)
        sys.exit(2)
    command()


if __name__ == "__main__":
    main()
