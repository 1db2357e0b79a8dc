"""``python -m palestra.cli``: the same command where the script is not on the path."""

from palestra.cli.app import main

if __name__ == "__main__":
    main()
