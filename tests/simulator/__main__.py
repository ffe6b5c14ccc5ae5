"""Entry point of `python -m tests.simulator`. Worker processes can import `runner`."""

import sys

from tests.simulator.runner import main

if __name__ == "__main__":
    sys.exit(main())
