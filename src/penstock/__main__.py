"""`python -m penstock`: the command line, run by a chosen interpreter. Driver."""

from penstock.cli import main

if __name__ == "__main__":
    main()
