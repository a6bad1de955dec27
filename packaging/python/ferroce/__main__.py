"""``python -m ferroce``, and the script ``ferroce``, are the program ``ferroce``."""

import os
import sys

from ferroce import program


def main():
    os.execv(program(), ["ferroce", *sys.argv[1:]])


if __name__ == "__main__":
    main()
