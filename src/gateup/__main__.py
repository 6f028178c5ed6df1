"""`python -m gateup` is the `gateup` command."""

from gateup.cli import main

if __name__ == "__main__":
    main()
