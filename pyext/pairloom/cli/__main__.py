"""`python -m pairloom.cli` is `pairloom`."""

from pairloom.cli import main

if __name__ == "__main__":
    main()
