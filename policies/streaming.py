"""How long the events of one stream wait for each other: the more streams, the longer."""


def interval_s(streams: int, least_s: float, messages_per_s: float) -> float:
    """Seconds between two messages of one of ``streams`` open streams of a decoder replica.

    ``least_s`` as long as all of them together send no more than ``messages_per_s``; beyond that so much that
    they send just that many. 0 as ``least_s`` turns joining off.
    """
    if least_s <= 0:
        return 0.0
    return max(least_s, streams / messages_per_s)
