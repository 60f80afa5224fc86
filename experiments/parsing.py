"""The parser of commands here."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """What is wrong is one ValueError, where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
