"""Trainer, scorer and worker client of the Ebbtide work queue on Redis.

`Queue.connect` finds a run; `Queue.trainer` and `Queue.worker` are its two sides, and `NodeAgent`
is the way of a worker that lets its node's agent look after it. Every call may be
sent again, and is, within a bound; every error says what was expected, what came, and what to do.
"""

from .agent import DEFAULT_SOCKET, AgentGrant, AgentLease, AgentReply, NodeAgent, Tokens
from .control import Drain, Engine, PolicyVersion, Resize, TrainerPhase
from .errors import (
    AgentUnavailable,
    EbbtideError,
    InvalidInput,
    LeaseGateClosed,
    LimitReached,
    PolicyVersionRefused,
    ProtocolError,
    QueueBusy,
    QueueUnavailable,
    QueueUnsuitable,
    ResizeRefused,
)
from .events import Keep, NodeEvent, NodeNotice, NodeState, Release, Reopened
from .layout import Durability, Layout
from .names import Holder
from .queue import Queue
from .samples import (
    Chunk,
    FabricVerdict,
    Finish,
    FinishReason,
    Response,
    Sample,
    Score,
    SealedGroup,
    Segment,
)
from .status import Failure, SlotSummary, Status, UnitEvent
from .trainer import Trainer
from .work import LogprobsMode, PromptGroup, ResumePolicy, Sampling
from .worker import Grant, Leased, ProgressLimits, Stage, Waiting, Worker
from .writes import Answer, HandBackCause, Write, WriteReply

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_SOCKET",
    "AgentGrant",
    "AgentLease",
    "AgentReply",
    "AgentUnavailable",
    "Answer",
    "Chunk",
    "Drain",
    "Durability",
    "EbbtideError",
    "Engine",
    "FabricVerdict",
    "Failure",
    "Finish",
    "FinishReason",
    "Grant",
    "HandBackCause",
    "Holder",
    "InvalidInput",
    "Keep",
    "Layout",
    "LeaseGateClosed",
    "Leased",
    "LimitReached",
    "LogprobsMode",
    "NodeAgent",
    "NodeEvent",
    "NodeNotice",
    "NodeState",
    "PolicyVersion",
    "PolicyVersionRefused",
    "ProgressLimits",
    "PromptGroup",
    "ProtocolError",
    "Queue",
    "QueueBusy",
    "QueueUnavailable",
    "QueueUnsuitable",
    "Release",
    "Reopened",
    "Resize",
    "ResizeRefused",
    "Response",
    "ResumePolicy",
    "Sample",
    "Sampling",
    "Score",
    "SealedGroup",
    "Segment",
    "SlotSummary",
    "Stage",
    "Status",
    "Tokens",
    "Trainer",
    "TrainerPhase",
    "UnitEvent",
    "Waiting",
    "Worker",
    "Write",
    "WriteReply",
]
