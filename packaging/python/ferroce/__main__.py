"""``python -m ferroce`` is the program ``ferroce``."""

import os
import sys

from ferroce import program

if __name__ == "__main__":
    path = program()
    os.execv(path, ["ferroce", *sys.argv[1:]])
