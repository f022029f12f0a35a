"""`python -m convattn`: the command line, by whichever interpreter runs it."""

import sys

from convattn.cli import main

if __name__ == "__main__":
    sys.exit(main())
