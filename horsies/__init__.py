"""horsies: a task queue and workflow engine for Python on PostgreSQL alone.

>>> from horsies import Horsies, TaskError, TaskResult
>>> app = Horsies()
>>> @app.task("add")
... def add(x: int, y: int) -> TaskResult[int, TaskError]:
...     return TaskResult(ok=x + y)
"""

from horsies.app import Horsies
from horsies.config import (
    AppConfig,
    CustomQueueConfig,
    PayloadPolicy,
    PostgresConfig,
    QueueMode,
    RecoveryConfig,
    RetentionConfig,
    WorkerConfig,
    WorkerResilienceConfig,
)
from horsies.errors import (
    ErrorCode,
    MultipleValidationErrors,
    ValidationReport,
)
from horsies.handle import TaskHandle
from horsies.registry import ChildProcessStartHook
from horsies.results import (
    BrokerOperationError,
    BrokerResult,
    Err,
    HandleOperationError,
    HandleResult,
    Ok,
    Result,
    SubWorkflowError,
    TaskAttemptInfo,
    TaskError,
    TaskInfo,
    TaskResult,
    TaskSendError,
    TaskSendPayload,
    TaskSendResult,
    is_err,
    is_ok,
)
from horsies.retry import ExceptionMapper, RetryPolicy
from horsies.sending import TaskSendOptions
from horsies.status import (
    TASK_TERMINAL_STATES,
    BrokerErrorCode,
    BuiltInTaskCode,
    ContractCode,
    HandleErrorCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    TaskAttemptOutcome,
    TaskSendErrorCode,
    TaskStatus,
)

__all__ = [
    "TASK_TERMINAL_STATES",
    "AppConfig",
    "BrokerErrorCode",
    "BrokerOperationError",
    "BrokerResult",
    "BuiltInTaskCode",
    "ChildProcessStartHook",
    "ContractCode",
    "CustomQueueConfig",
    "Err",
    "ErrorCode",
    "ExceptionMapper",
    "HandleErrorCode",
    "HandleOperationError",
    "HandleResult",
    "Horsies",
    "MultipleValidationErrors",
    "Ok",
    "OperationalErrorCode",
    "OutcomeCode",
    "PayloadPolicy",
    "PostgresConfig",
    "QueueMode",
    "RecoveryConfig",
    "Result",
    "RetentionConfig",
    "RetrievalCode",
    "RetryPolicy",
    "SubWorkflowError",
    "TaskAttemptInfo",
    "TaskAttemptOutcome",
    "TaskError",
    "TaskHandle",
    "TaskInfo",
    "TaskResult",
    "TaskSendError",
    "TaskSendErrorCode",
    "TaskSendOptions",
    "TaskSendPayload",
    "TaskSendResult",
    "TaskStatus",
    "ValidationReport",
    "WorkerConfig",
    "WorkerResilienceConfig",
    "is_err",
    "is_ok",
]
