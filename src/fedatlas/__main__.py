"""``python -m fedatlas`` is ``fedatlas``."""

from fedatlas.cli.app import main

if __name__ == "__main__":
    main()
