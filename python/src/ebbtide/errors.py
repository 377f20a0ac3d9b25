"""What can go wrong, as one family of exceptions.

A caller branches on the class: bad input is the caller's to mend, an unsuitable Redis an
operator's; everything retriable passes by itself, and the same call may be sent again.
"""

from __future__ import annotations


class EbbtideError(Exception):
    """Base of everything that this package raises on purpose."""

    #: Whether the same call may succeed later without anybody changing anything.
    is_retriable = False


class InvalidInput(EbbtideError, ValueError):
    """An argument is out of its range; nothing was sent. The message names it."""


class QueueUnavailable(EbbtideError):
    """Redis did not answer within the bounds. Whether the call was carried out is unknown: send the
    same call again, which does no harm."""

    is_retriable = True


class QueueBusy(EbbtideError):
    """Memory of Redis is short: nothing was added; try again once groups were acknowledged."""

    is_retriable = True


class AgentUnavailable(EbbtideError):
    """The node's agent did not answer on its socket within the bounds; the same call may be sent
    again."""

    is_retriable = True


class LeaseGateClosed(EbbtideError):
    """The node's agent leases nothing now: the node is about to go, a rebalance recommendation
    stands, or the agent begins or ends. Finish or hand back what is held; its notices tell when
    work is leased again."""

    is_retriable = True


class LimitReached(EbbtideError):
    """This worker, or all on the node together, have as much as the agent lets them; the message
    says of what."""

    is_retriable = True


class QueueUnsuitable(EbbtideError):
    """This Redis, or the run in it, is not what was asked for; an operator has to change it."""


class ProtocolError(EbbtideError):
    """Redis holds or answered something that this version does not know."""


class ResizeRefused(EbbtideError):
    """The request for another size is not the one that holds any more: nothing has changed, and
    the trainer goes on with the nodes that it had."""


class PolicyVersionRefused(EbbtideError):
    """A policy version was not published: it is lower than the one that holds, or it holds already
    with other weights.

    Attributes:
        asked: the version that was to be published.
        holds: the version that holds.
    """

    def __init__(self, message: str, *, asked: int, holds: int) -> None:
        super().__init__(message)
        self.asked = asked
        self.holds = holds
