"""Stop signals: a flag for the loop, and a way out for the impatient."""

import signal
import threading

import pytest

from runs.signals import Stop


@pytest.mark.usefixtures("hears_sighup")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_signal_becomes_a_flag(name):
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with Stop() as stop:
        assert stop.requested is None
        signal.raise_signal(signal.Signals[name])
        assert stop.requested == name
        signal.raise_signal(signal.SIGTERM)  # a second signal does not change the reason
        assert stop.requested == name
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_interrupt_while_stopping_leaves_at_once(first):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Stop() as stop:
        signal.raise_signal(first)
        assert stop.requested is not None
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_leave_the_handlers_alone():
    seen = []

    def work():
        before = signal.getsignal(signal.SIGTERM)
        with Stop() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGTERM) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(None, True)]
