"""A parser of a command's arguments, with errors of one line."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Raises a ValueError of one line instead of printing its usage and exiting, as argparse does."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
