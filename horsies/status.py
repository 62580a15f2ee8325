"""The words of the record: states and error codes, spelt as the database spells them.

A terminal state is final: nothing leaves it but an explicit requeue of a failed task. A code, once
given out, keeps its meaning, for programs decide by it.
"""

from enum import StrEnum
from typing import Final, TypeAlias


class TaskStatus(StrEnum):
    """Where a task is. Up to CLAIMED its code has not run; from RUNNING on it may have."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"


class TaskAttemptOutcome(StrEnum):
    """How one run of a task ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    WORKER_FAILURE = "WORKER_FAILURE"


class WorkflowStatus(StrEnum):
    """Where a workflow is. A paused one can be resumed, so PAUSED is not terminal."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"


class WorkflowTaskStatus(StrEnum):
    """Where one node of a workflow is."""

    PENDING = "PENDING"
    READY = "READY"
    ENQUEUED = "ENQUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class WorkerState(StrEnum):
    """What a worker is doing."""

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


class OperationalErrorCode(StrEnum):
    """Running the task went wrong."""

    UNHANDLED_EXCEPTION = "UNHANDLED_EXCEPTION"
    TASK_EXCEPTION = "TASK_EXCEPTION"
    WORKER_CRASHED = "WORKER_CRASHED"
    BROKER_ERROR = "BROKER_ERROR"
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"
    RESULT_DESERIALIZATION_ERROR = "RESULT_DESERIALIZATION_ERROR"
    WORKFLOW_ENQUEUE_FAILED = "WORKFLOW_ENQUEUE_FAILED"
    SUBWORKFLOW_LOAD_FAILED = "SUBWORKFLOW_LOAD_FAILED"


class ContractCode(StrEnum):
    """A value does not have the type that was promised."""

    RETURN_TYPE_MISMATCH = "RETURN_TYPE_MISMATCH"
    PYDANTIC_HYDRATION_ERROR = "PYDANTIC_HYDRATION_ERROR"
    WORKFLOW_CTX_MISSING_ID = "WORKFLOW_CTX_MISSING_ID"
    NO_TYPE_AVAILABLE = "NO_TYPE_AVAILABLE"


class RetrievalCode(StrEnum):
    """The result could not be had; the task itself may be well."""

    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    RESULT_NOT_AVAILABLE = "RESULT_NOT_AVAILABLE"
    RESULT_NOT_READY = "RESULT_NOT_READY"


class OutcomeCode(StrEnum):
    """The task or workflow ended otherwise than by its own result."""

    TASK_CANCELLED = "TASK_CANCELLED"
    TASK_EXPIRED = "TASK_EXPIRED"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    WORKFLOW_PAUSED = "WORKFLOW_PAUSED"
    WORKFLOW_EXPIRED = "WORKFLOW_EXPIRED"
    WORKFLOW_FAILED = "WORKFLOW_FAILED"
    WORKFLOW_CANCELLED = "WORKFLOW_CANCELLED"
    UPSTREAM_SKIPPED = "UPSTREAM_SKIPPED"
    SUBWORKFLOW_FAILED = "SUBWORKFLOW_FAILED"
    WORKFLOW_SUCCESS_CASE_NOT_MET = "WORKFLOW_SUCCESS_CASE_NOT_MET"


BuiltInTaskCode: TypeAlias = OperationalErrorCode | ContractCode | RetrievalCode | OutcomeCode

BUILTIN_CODE_REGISTRY: Final[dict[str, BuiltInTaskCode]] = {
    code.value: code
    for codes in (OperationalErrorCode, ContractCode, RetrievalCode, OutcomeCode)
    for code in codes
}


class TaskSendErrorCode(StrEnum):
    """Why a send failed. Only ENQUEUE_FAILED may be worth another try."""

    SEND_SUPPRESSED = "SEND_SUPPRESSED"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    PAYLOAD_MISMATCH = "PAYLOAD_MISMATCH"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"


class WorkflowStartErrorCode(StrEnum):
    """Why a workflow did not start."""

    BROKER_NOT_CONFIGURED = "BROKER_NOT_CONFIGURED"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    INTERNAL_FAILED = "INTERNAL_FAILED"


class HandleErrorCode(StrEnum):
    """Why an operation on a workflow failed."""

    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    DB_OPERATION_FAILED = "DB_OPERATION_FAILED"
    LOOP_RUNNER_FAILED = "LOOP_RUNNER_FAILED"
    INTERNAL_FAILED = "INTERNAL_FAILED"


class BrokerErrorCode(StrEnum):
    """Which kind of database operation failed."""

    NO_BROKER = "NO_BROKER"
    SCHEMA_INIT_FAILED = "SCHEMA_INIT_FAILED"
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    TASK_INFO_QUERY_FAILED = "TASK_INFO_QUERY_FAILED"
    TASK_CANCEL_FAILED = "TASK_CANCEL_FAILED"
    MONITORING_QUERY_FAILED = "MONITORING_QUERY_FAILED"
    CLEANUP_FAILED = "CLEANUP_FAILED"
    LISTENER_START_FAILED = "LISTENER_START_FAILED"
    LISTENER_SUBSCRIBE_FAILED = "LISTENER_SUBSCRIBE_FAILED"
    CLOSE_FAILED = "CLOSE_FAILED"
