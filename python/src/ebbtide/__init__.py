"""Trainer, scorer and worker client of the Ebbtide work queue on Redis.

`Queue.connect` finds a run; `Queue.trainer` and `Queue.worker` are its two sides. Every call may be
sent again, and is, within a bound; every error says what was expected, what came, and what to do.
"""

from .control import Engine, PolicyVersion, Resize, TrainerPhase
from .errors import (
    EbbtideError,
    InvalidInput,
    PolicyVersionRefused,
    ProtocolError,
    QueueBusy,
    QueueUnavailable,
    QueueUnsuitable,
)
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
    "Answer",
    "Chunk",
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
    "Layout",
    "Leased",
    "LogprobsMode",
    "PolicyVersion",
    "PolicyVersionRefused",
    "ProgressLimits",
    "PromptGroup",
    "ProtocolError",
    "Queue",
    "QueueBusy",
    "QueueUnavailable",
    "QueueUnsuitable",
    "Resize",
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
    "Trainer",
    "TrainerPhase",
    "UnitEvent",
    "Waiting",
    "Worker",
    "Write",
    "WriteReply",
]
