"""Entry point of `python -m tests.simulator`; `runner` can be imported by worker processes."""

import sys

from tests.simulator.runner import main

if __name__ == "__main__":
    sys.exit(main())
