"""The parser of a command's arguments, whose errors are one line like all others."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Raises a ValueError of one line where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
