"""`python -m penstock.cli`: the command line, by the interpreter that one names. Driver."""

from penstock.cli import main

if __name__ == "__main__":
    main()
