"""`python -m paceline` is `paceline`: where every command begins.

Importing what reads the command line takes a moment, and Ctrl-C may come in it.
"""

import sys


def main() -> None:
    try:
        from paceline.cli.main import main as begin
    except KeyboardInterrupt:
        print("error[E004]: stopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)
    begin()


if __name__ == "__main__":
    main()
