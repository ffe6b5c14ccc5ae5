"""Entry point of `python -m tests.attacks`."""

import sys

from tests.attacks.runner import main

if __name__ == "__main__":
    sys.exit(main())
