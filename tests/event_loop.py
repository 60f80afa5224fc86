"""Steps of workers that finish what they began, event by event: an oracle that shares nothing with what it checks."""

import heapq
import math

LIMIT, GRACE = 1.6, 0.1  # seconds: the deadline, and the time of grace of the quorum


def ends(rule, start, times, num_workers, needed):
    """When a step ends, as far as its arrivals so far tell, and whether an arrival at that very moment still counts."""
    if rule == "deadline":
        limit = max(start + LIMIT, times[0]) if times else math.inf
        return (times[-1] if len(times) == num_workers else limit), True
    if len(times) < needed:
        return math.inf, True
    if rule == "quorum":
        return (times[-1] if len(times) == num_workers else times[needed - 1] + GRACE), True
    return times[needed - 1], False


def event_loop(durations, rule, *, needed):
    """Yields (workers that are counted, seconds, workers that are busy at its start) of each step.

    A worker has one gradient in hand at a time. When it is done it begins that of the step that is open, or waits for
    the next step.
    """
    num_steps, num_workers = durations.shape
    in_hand = []  # (when it is done, worker, step of it)
    now = 0.0
    for step in range(num_steps):
        busy = {worker for _, worker, _ in in_hand}
        for worker in set(range(num_workers)) - busy:
            heapq.heappush(in_hand, (now + durations[step, worker], worker, step))
        times, counted = [], []
        while True:
            end, counts = ends(rule, now, times, num_workers, int(needed[step]))
            if not in_hand or end < in_hand[0][0] or (end == in_hand[0][0] and not counts):
                break
            done, worker, of_step = heapq.heappop(in_hand)
            if of_step == step:
                times.append(done)
                counted.append(worker)
            else:
                heapq.heappush(in_hand, (done + durations[step, worker], worker, step))
        yield sorted(counted), end - now, len(busy)
        now = end
