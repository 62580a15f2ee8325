"""horsies: a task queue and workflow engine for Python on PostgreSQL alone.

>>> from horsies import Horsies, TaskError, TaskResult
>>> app = Horsies()
>>> @app.task("add")
... def add(x: int, y: int) -> TaskResult[int, TaskError]:
...     return TaskResult(ok=x + y)

Importing the package costs next to nothing: a name brings along what it needs when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from horsies.context import log_context
    from horsies.errors import (
        ErrorCode,
        MultipleValidationErrors,
        ValidationReport,
        WorkflowContextMissingIdError,
        WorkflowValidationError,
    )
    from horsies.events import Event
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
        WorkflowStartError,
        WorkflowStartResult,
        is_err,
        is_ok,
    )
    from horsies.retry import ExceptionMapper, RetryPolicy
    from horsies.running import CurrentTask, current_task
    from horsies.schedule.cron import (
        BothDays,
        ByMonthDay,
        ByWeekday,
        CronEnumRange,
        CronEnumStep,
        CronEnumValues,
        CronEvery,
        CronRange,
        CronStep,
        CronValues,
        DaySelector,
        EitherDay,
        EveryDay,
        Month,
        Weekday,
    )
    from horsies.schedule.model import ScheduleConfig, TaskSchedule
    from horsies.schedule.patterns import (
        CronSchedule,
        DailySchedule,
        HourlySchedule,
        IntervalSchedule,
        MonthlySchedule,
        SchedulePattern,
        WeeklySchedule,
    )
    from horsies.scheduler.rows import ScheduleError, ScheduleErrorCode, ScheduleInfo, ScheduleResult
    from horsies.sending import TaskSendOptions
    from horsies.status import (
        TASK_TERMINAL_STATES,
        WORKFLOW_TASK_TERMINAL_STATES,
        WORKFLOW_TERMINAL_STATES,
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
        WorkflowStartErrorCode,
        WorkflowStatus,
        WorkflowTaskStatus,
    )
    from horsies.storage.notes import TaskLogLine, TaskProgress
    from horsies.workflow.context import WorkflowContext, WorkflowMeta
    from horsies.workflow.definition import WorkflowDefinition
    from horsies.workflow.functions import (
        pause_workflow,
        pause_workflow_sync,
        resume_workflow,
        resume_workflow_sync,
        start_workflow,
        start_workflow_async,
    )
    from horsies.workflow.handle import WorkflowHandle
    from horsies.workflow.info import SubWorkflowSummary, WorkflowTaskInfo
    from horsies.workflow.nodes import (
        AnyNode,
        NodeKey,
        OnError,
        SubWorkflowNode,
        SuccessCase,
        SuccessPolicy,
        TaskNode,
        from_node,
        map_node,
        signal_node,
        sleep_node,
        slugify,
    )
    from horsies.workflow.spec import WorkflowSpec

__all__ = [
    "TASK_TERMINAL_STATES",
    "WORKFLOW_TASK_TERMINAL_STATES",
    "WORKFLOW_TERMINAL_STATES",
    "AnyNode",
    "AppConfig",
    "BothDays",
    "BrokerErrorCode",
    "BrokerOperationError",
    "BrokerResult",
    "BuiltInTaskCode",
    "ByMonthDay",
    "ByWeekday",
    "ChildProcessStartHook",
    "ContractCode",
    "CronEnumRange",
    "CronEnumStep",
    "CronEnumValues",
    "CronEvery",
    "CronRange",
    "CronSchedule",
    "CronStep",
    "CronValues",
    "CurrentTask",
    "CustomQueueConfig",
    "DailySchedule",
    "DaySelector",
    "EitherDay",
    "Err",
    "ErrorCode",
    "Event",
    "EveryDay",
    "ExceptionMapper",
    "HandleErrorCode",
    "HandleOperationError",
    "HandleResult",
    "Horsies",
    "HourlySchedule",
    "IntervalSchedule",
    "Month",
    "MonthlySchedule",
    "MultipleValidationErrors",
    "NodeKey",
    "Ok",
    "OnError",
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
    "ScheduleConfig",
    "ScheduleError",
    "ScheduleErrorCode",
    "ScheduleInfo",
    "SchedulePattern",
    "ScheduleResult",
    "SubWorkflowError",
    "SubWorkflowNode",
    "SubWorkflowSummary",
    "SuccessCase",
    "SuccessPolicy",
    "TaskAttemptInfo",
    "TaskAttemptOutcome",
    "TaskError",
    "TaskHandle",
    "TaskInfo",
    "TaskLogLine",
    "TaskNode",
    "TaskProgress",
    "TaskResult",
    "TaskSchedule",
    "TaskSendError",
    "TaskSendErrorCode",
    "TaskSendOptions",
    "TaskSendPayload",
    "TaskSendResult",
    "TaskStatus",
    "ValidationReport",
    "Weekday",
    "WeeklySchedule",
    "WorkerConfig",
    "WorkerResilienceConfig",
    "WorkflowContext",
    "WorkflowContextMissingIdError",
    "WorkflowDefinition",
    "WorkflowHandle",
    "WorkflowMeta",
    "WorkflowSpec",
    "WorkflowStartError",
    "WorkflowStartErrorCode",
    "WorkflowStartResult",
    "WorkflowStatus",
    "WorkflowTaskInfo",
    "WorkflowTaskStatus",
    "WorkflowValidationError",
    "current_task",
    "from_node",
    "is_err",
    "is_ok",
    "log_context",
    "map_node",
    "pause_workflow",
    "pause_workflow_sync",
    "resume_workflow",
    "resume_workflow_sync",
    "signal_node",
    "sleep_node",
    "slugify",
    "start_workflow",
    "start_workflow_async",
]

# Where each name comes from, as above.
_NAMES = {
    "horsies.context": "log_context",
    "horsies.events": "Event",
    "horsies.running": "CurrentTask current_task",
    "horsies.storage.notes": "TaskLogLine TaskProgress",
    "horsies.app": "Horsies",
    "horsies.config": (
        "AppConfig CustomQueueConfig PayloadPolicy PostgresConfig QueueMode RecoveryConfig "
        "RetentionConfig WorkerConfig WorkerResilienceConfig"
    ),
    "horsies.errors": (
        "ErrorCode MultipleValidationErrors ValidationReport WorkflowContextMissingIdError "
        "WorkflowValidationError"
    ),
    "horsies.handle": "TaskHandle",
    "horsies.registry": "ChildProcessStartHook",
    "horsies.results": (
        "BrokerOperationError BrokerResult Err HandleOperationError HandleResult Ok Result "
        "SubWorkflowError TaskAttemptInfo TaskError TaskInfo TaskResult TaskSendError TaskSendPayload "
        "TaskSendResult WorkflowStartError WorkflowStartResult is_err is_ok"
    ),
    "horsies.retry": "ExceptionMapper RetryPolicy",
    "horsies.schedule.cron": (
        "BothDays ByMonthDay ByWeekday CronEnumRange CronEnumStep CronEnumValues CronEvery CronRange "
        "CronStep CronValues DaySelector EitherDay EveryDay Month Weekday"
    ),
    "horsies.schedule.model": "ScheduleConfig TaskSchedule",
    "horsies.schedule.patterns": (
        "CronSchedule DailySchedule HourlySchedule IntervalSchedule MonthlySchedule SchedulePattern "
        "WeeklySchedule"
    ),
    "horsies.scheduler.rows": "ScheduleError ScheduleErrorCode ScheduleInfo ScheduleResult",
    "horsies.sending": "TaskSendOptions",
    "horsies.status": (
        "TASK_TERMINAL_STATES WORKFLOW_TASK_TERMINAL_STATES WORKFLOW_TERMINAL_STATES BrokerErrorCode "
        "BuiltInTaskCode ContractCode HandleErrorCode OperationalErrorCode OutcomeCode RetrievalCode "
        "TaskAttemptOutcome TaskSendErrorCode TaskStatus WorkflowStartErrorCode WorkflowStatus "
        "WorkflowTaskStatus"
    ),
    "horsies.workflow.context": "WorkflowContext WorkflowMeta",
    "horsies.workflow.definition": "WorkflowDefinition",
    "horsies.workflow.functions": (
        "pause_workflow pause_workflow_sync resume_workflow resume_workflow_sync start_workflow "
        "start_workflow_async"
    ),
    "horsies.workflow.handle": "WorkflowHandle",
    "horsies.workflow.info": "SubWorkflowSummary WorkflowTaskInfo",
    "horsies.workflow.nodes": (
        "AnyNode NodeKey OnError SubWorkflowNode SuccessCase SuccessPolicy TaskNode from_node map_node "
        "signal_node sleep_node slugify"
    ),
    "horsies.workflow.spec": "WorkflowSpec",
}
_ORIGINS = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # else a checker would take any name for one of ours

    def __getattr__(name):
        if name not in _ORIGINS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_ORIGINS[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
