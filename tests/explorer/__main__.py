"""Entry point of `python -m tests.explorer`."""

import sys

from tests.explorer.runner import main

if __name__ == "__main__":
    sys.exit(main())
