"""What each command of this repository does first, before the imports that take seconds."""

from launch import output, signals


def begin() -> None:
    """Makes output that cannot be written harmless, and a signal end the process in one line.

    A module that is a command calls it above its other imports::

        if __name__ == "__main__":
            from launch import command

            command.begin()
    """
    output.never_fail()
    signals.listen()
