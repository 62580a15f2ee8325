"""Statuses and error codes, as they are stored in the database.

A terminal status is final, except that a failed task can be requeued explicitly. A published code keeps its meaning, because
programs depend on it.
"""

from enum import StrEnum
from typing import Final, TypeAlias, TypeVar, cast


class TaskStatus(StrEnum):
    """The status of a task. Up to CLAIMED its code has not run; from RUNNING on it may have."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def is_terminal(self) -> bool:
        """Return True if the task has ended.

        >>> TaskStatus.COMPLETED.is_terminal
        True
        """
        return self in TASK_TERMINAL_STATES


class TaskAttemptOutcome(StrEnum):
    """The outcome of one run of a task."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class WorkflowStatus(StrEnum):
    """The status of a workflow. PAUSED is not terminal, because a paused workflow can be resumed."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def is_terminal(self) -> bool:
        """Return True if the workflow has ended.

        >>> WorkflowStatus.COMPLETED.is_terminal
        True
        """
        return self in WORKFLOW_TERMINAL_STATES


class WorkflowTaskStatus(StrEnum):
    """The status of one node of a workflow."""

    PENDING = "PENDING"
    READY = "READY"
    ENQUEUED = "ENQUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"

    @property
    def is_terminal(self) -> bool:
        """Return True if the node has ended.

        >>> WorkflowTaskStatus.COMPLETED.is_terminal
        True
        """
        return self in WORKFLOW_TASK_TERMINAL_STATES


class WorkerState(StrEnum):
    """The state of a worker."""

    STARTED = "started"
    IDLE = "idle"
    BUSY = "busy"
    SUSPENDED = "suspended"
    DRAINING = "draining"
    DEAD = "dead"


TASK_TERMINAL_STATES = frozenset(
    {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED}
)
WORKFLOW_TERMINAL_STATES = frozenset(
    {WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.EXPIRED}
)
WORKFLOW_TASK_TERMINAL_STATES = frozenset(
    {WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED}
)


E = TypeVar("E", bound=StrEnum)


def member(kind: type[E], text: str) -> E:
    """Return the enum member for a value from the database; the text itself if there is none, as any SQL client can write it.

    >>> member(TaskStatus, "RUNNING") is TaskStatus.RUNNING
    True
    """
    try:
        return kind(text)
    except ValueError:
        return cast("E", text)


class OperationalErrorCode(StrEnum):
    """Codes for failures while a task was run."""

    UNHANDLED_EXCEPTION = "UNHANDLED_EXCEPTION"
    TASK_EXCEPTION = "TASK_EXCEPTION"
    WORKER_CRASHED = "WORKER_CRASHED"
    BROKER_ERROR = "BROKER_ERROR"
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"
    RESULT_DESERIALIZATION_ERROR = "RESULT_DESERIALIZATION_ERROR"
    WORKFLOW_ENQUEUE_FAILED = "WORKFLOW_ENQUEUE_FAILED"
    SUBWORKFLOW_LOAD_FAILED = "SUBWORKFLOW_LOAD_FAILED"
    POISONED_ROW = "POISONED_ROW"
    STEP_NOT_STORED = "STEP_NOT_STORED"


class ContractCode(StrEnum):
    """Codes for values that do not have the annotated type."""

    RETURN_TYPE_MISMATCH = "RETURN_TYPE_MISMATCH"
    PYDANTIC_HYDRATION_ERROR = "PYDANTIC_HYDRATION_ERROR"
    WORKFLOW_CTX_MISSING_ID = "WORKFLOW_CTX_MISSING_ID"
    STEP_NAME_REUSED = "STEP_NAME_REUSED"
    STEP_RESULT_MISMATCH = "STEP_RESULT_MISMATCH"


class RetrievalCode(StrEnum):
    """Codes for results that could not be retrieved; the task itself may have succeeded."""

    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    RESULT_NOT_AVAILABLE = "RESULT_NOT_AVAILABLE"
    RESULT_NOT_READY = "RESULT_NOT_READY"


class OutcomeCode(StrEnum):
    """Codes for tasks and workflows that ended without a result of their own."""

    TASK_CANCELLED = "TASK_CANCELLED"
    TASK_EXPIRED = "TASK_EXPIRED"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    SIGNAL_TIMEOUT = "SIGNAL_TIMEOUT"
    WORKFLOW_PAUSED = "WORKFLOW_PAUSED"
    WORKFLOW_EXPIRED = "WORKFLOW_EXPIRED"
    WORKFLOW_FAILED = "WORKFLOW_FAILED"
    WORKFLOW_CANCELLED = "WORKFLOW_CANCELLED"
    UPSTREAM_SKIPPED = "UPSTREAM_SKIPPED"
    UPSTREAM_FAILED = "UPSTREAM_FAILED"
    SUBWORKFLOW_FAILED = "SUBWORKFLOW_FAILED"
    WORKFLOW_SUCCESS_CASE_NOT_MET = "WORKFLOW_SUCCESS_CASE_NOT_MET"


BuiltInTaskCode: TypeAlias = OperationalErrorCode | ContractCode | RetrievalCode | OutcomeCode

BUILTIN_CODE_REGISTRY: Final[dict[str, BuiltInTaskCode]] = {
    code.value: code
    for codes in (OperationalErrorCode, ContractCode, RetrievalCode, OutcomeCode)
    for code in codes
}


class TaskSendErrorCode(StrEnum):
    """Codes of failed sends. Only ENQUEUE_FAILED can be retried."""

    SEND_SUPPRESSED = "SEND_SUPPRESSED"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    PAYLOAD_MISMATCH = "PAYLOAD_MISMATCH"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"


class WorkflowStartErrorCode(StrEnum):
    """Codes of failed workflow starts."""

    BROKER_NOT_CONFIGURED = "BROKER_NOT_CONFIGURED"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    ENQUEUE_FAILED = "ENQUEUE_FAILED"


class HandleErrorCode(StrEnum):
    """Codes of failed operations on a workflow."""

    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    DB_OPERATION_FAILED = "DB_OPERATION_FAILED"
    INTERNAL_FAILED = "INTERNAL_FAILED"


class BrokerErrorCode(StrEnum):
    """Codes of failed database operations."""

    TASK_INFO_QUERY_FAILED = "TASK_INFO_QUERY_FAILED"
    TASK_CANCEL_FAILED = "TASK_CANCEL_FAILED"
    SCHEMA_INIT_FAILED = "SCHEMA_INIT_FAILED"
    RECOVERY_FAILED = "RECOVERY_FAILED"
    MONITORING_QUERY_FAILED = "MONITORING_QUERY_FAILED"
    CLOSE_FAILED = "CLOSE_FAILED"
