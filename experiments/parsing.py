"""The argument parser of the commands in this package."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Raises ValueError for bad arguments, where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
