"""horsies: a task queue and workflow engine for Python on PostgreSQL alone.

>>> from horsies import Horsies
>>> app = Horsies()
>>> @app.task
... def add(x: int, y: int) -> int:
...     return x + y

Importing the package is cheap: a name's module is imported when the name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "1.0.0"

if TYPE_CHECKING:  # for type checkers; `X as X` marks a name as public
    from horsies.app import Horsies as Horsies
    from horsies.config import AppConfig as AppConfig
    from horsies.config import CustomQueueConfig as CustomQueueConfig
    from horsies.config import PayloadPolicy as PayloadPolicy
    from horsies.config import PostgresConfig as PostgresConfig
    from horsies.config import Queue as Queue
    from horsies.config import QueueMode as QueueMode
    from horsies.config import RecoveryConfig as RecoveryConfig
    from horsies.config import RetentionConfig as RetentionConfig
    from horsies.config import WorkerConfig as WorkerConfig
    from horsies.config import WorkerResilienceConfig as WorkerResilienceConfig
    from horsies.db.queries.tasks import TaskLogLine as TaskLogLine
    from horsies.db.queries.tasks import TaskProgress as TaskProgress
    from horsies.enqueue import TaskSendOptions as TaskSendOptions
    from horsies.errors import DatabaseError as DatabaseError
    from horsies.errors import ErrorCode as ErrorCode
    from horsies.errors import HorsiesError as HorsiesError
    from horsies.errors import MultipleValidationErrors as MultipleValidationErrors
    from horsies.errors import RateLimited as RateLimited
    from horsies.errors import ResultUnavailable as ResultUnavailable
    from horsies.errors import SendError as SendError
    from horsies.errors import SignalTimeout as SignalTimeout
    from horsies.errors import TaskCancelled as TaskCancelled
    from horsies.errors import TaskExpired as TaskExpired
    from horsies.errors import TaskFailed as TaskFailed
    from horsies.errors import TaskFailure as TaskFailure
    from horsies.errors import TaskNotFound as TaskNotFound
    from horsies.errors import TaskTimeout as TaskTimeout
    from horsies.errors import UnwrapError as UnwrapError
    from horsies.errors import ValidationReport as ValidationReport
    from horsies.errors import WorkflowContextMissingIdError as WorkflowContextMissingIdError
    from horsies.errors import WorkflowValidationError as WorkflowValidationError
    from horsies.events import Event as Event
    from horsies.handle import StepInfo as StepInfo
    from horsies.handle import TaskHandle as TaskHandle
    from horsies.middleware import log_context as log_context
    from horsies.registry import ChildProcessStartHook as ChildProcessStartHook
    from horsies.result import BrokerOperationError as BrokerOperationError
    from horsies.result import BrokerResult as BrokerResult
    from horsies.result import Err as Err
    from horsies.result import HandleOperationError as HandleOperationError
    from horsies.result import HandleResult as HandleResult
    from horsies.result import Ok as Ok
    from horsies.result import Result as Result
    from horsies.result import SubWorkflowError as SubWorkflowError
    from horsies.result import TaskAttemptInfo as TaskAttemptInfo
    from horsies.result import TaskError as TaskError
    from horsies.result import TaskInfo as TaskInfo
    from horsies.result import TaskResult as TaskResult
    from horsies.result import TaskSendError as TaskSendError
    from horsies.result import TaskSendPayload as TaskSendPayload
    from horsies.result import TaskSendResult as TaskSendResult
    from horsies.result import WorkflowStartError as WorkflowStartError
    from horsies.result import WorkflowStartResult as WorkflowStartResult
    from horsies.result import as_result as as_result
    from horsies.result import is_err as is_err
    from horsies.result import is_ok as is_ok
    from horsies.retry import ExceptionMapper as ExceptionMapper
    from horsies.retry import RetryPolicy as RetryPolicy
    from horsies.schedule.api import ScheduleError as ScheduleError
    from horsies.schedule.api import ScheduleErrorCode as ScheduleErrorCode
    from horsies.schedule.api import ScheduleInfo as ScheduleInfo
    from horsies.schedule.api import ScheduleResult as ScheduleResult
    from horsies.schedule.model import ScheduleConfig as ScheduleConfig
    from horsies.schedule.model import TaskSchedule as TaskSchedule
    from horsies.schedule.patterns import BothDays as BothDays
    from horsies.schedule.patterns import ByMonthDay as ByMonthDay
    from horsies.schedule.patterns import ByWeekday as ByWeekday
    from horsies.schedule.patterns import CronEnumRange as CronEnumRange
    from horsies.schedule.patterns import CronEnumStep as CronEnumStep
    from horsies.schedule.patterns import CronEnumValues as CronEnumValues
    from horsies.schedule.patterns import CronEvery as CronEvery
    from horsies.schedule.patterns import CronRange as CronRange
    from horsies.schedule.patterns import CronSchedule as CronSchedule
    from horsies.schedule.patterns import CronStep as CronStep
    from horsies.schedule.patterns import CronValues as CronValues
    from horsies.schedule.patterns import DailySchedule as DailySchedule
    from horsies.schedule.patterns import DaySelector as DaySelector
    from horsies.schedule.patterns import EitherDay as EitherDay
    from horsies.schedule.patterns import EveryDay as EveryDay
    from horsies.schedule.patterns import HourlySchedule as HourlySchedule
    from horsies.schedule.patterns import IntervalSchedule as IntervalSchedule
    from horsies.schedule.patterns import Month as Month
    from horsies.schedule.patterns import MonthlySchedule as MonthlySchedule
    from horsies.schedule.patterns import SchedulePattern as SchedulePattern
    from horsies.schedule.patterns import Weekday as Weekday
    from horsies.schedule.patterns import WeeklySchedule as WeeklySchedule
    from horsies.status import TASK_TERMINAL_STATES as TASK_TERMINAL_STATES
    from horsies.status import WORKFLOW_TASK_TERMINAL_STATES as WORKFLOW_TASK_TERMINAL_STATES
    from horsies.status import WORKFLOW_TERMINAL_STATES as WORKFLOW_TERMINAL_STATES
    from horsies.status import BrokerErrorCode as BrokerErrorCode
    from horsies.status import BuiltInTaskCode as BuiltInTaskCode
    from horsies.status import ContractCode as ContractCode
    from horsies.status import HandleErrorCode as HandleErrorCode
    from horsies.status import OperationalErrorCode as OperationalErrorCode
    from horsies.status import OutcomeCode as OutcomeCode
    from horsies.status import RetrievalCode as RetrievalCode
    from horsies.status import TaskAttemptOutcome as TaskAttemptOutcome
    from horsies.status import TaskSendErrorCode as TaskSendErrorCode
    from horsies.status import TaskStatus as TaskStatus
    from horsies.status import WorkflowStartErrorCode as WorkflowStartErrorCode
    from horsies.status import WorkflowStatus as WorkflowStatus
    from horsies.status import WorkflowTaskStatus as WorkflowTaskStatus
    from horsies.task_context import AsyncCurrentTask as AsyncCurrentTask
    from horsies.task_context import CurrentTask as CurrentTask
    from horsies.task_context import current_async_task as current_async_task
    from horsies.task_context import current_batch as current_batch
    from horsies.task_context import current_task as current_task
    from horsies.workflow.context import WorkflowContext as WorkflowContext
    from horsies.workflow.context import WorkflowMeta as WorkflowMeta
    from horsies.workflow.definition import WorkflowDefinition as WorkflowDefinition
    from horsies.workflow.flow import Flow as Flow
    from horsies.workflow.flow import chain as chain
    from horsies.workflow.flow import group as group
    from horsies.workflow.handle import SubWorkflowSummary as SubWorkflowSummary
    from horsies.workflow.handle import WorkflowHandle as WorkflowHandle
    from horsies.workflow.handle import WorkflowTaskInfo as WorkflowTaskInfo
    from horsies.workflow.nodes import AnyNode as AnyNode
    from horsies.workflow.nodes import NodeKey as NodeKey
    from horsies.workflow.nodes import OnError as OnError
    from horsies.workflow.nodes import SubWorkflowNode as SubWorkflowNode
    from horsies.workflow.nodes import SuccessCase as SuccessCase
    from horsies.workflow.nodes import SuccessPolicy as SuccessPolicy
    from horsies.workflow.nodes import TaskNode as TaskNode
    from horsies.workflow.nodes import from_node as from_node
    from horsies.workflow.nodes import map_node as map_node
    from horsies.workflow.nodes import signal_node as signal_node
    from horsies.workflow.nodes import sleep_node as sleep_node
    from horsies.workflow.nodes import slugify as slugify
    from horsies.workflow.spec import WorkflowSpec as WorkflowSpec
    from horsies.workflow.spec import pause_workflow as pause_workflow
    from horsies.workflow.spec import pause_workflow_sync as pause_workflow_sync
    from horsies.workflow.spec import resume_workflow as resume_workflow
    from horsies.workflow.spec import resume_workflow_sync as resume_workflow_sync
    from horsies.workflow.spec import start_workflow as start_workflow
    from horsies.workflow.spec import start_workflow_async as start_workflow_async

# Which module to import when a name is first used. A test compares this with the imports above.
_NAMES = {
    "horsies.app": "Horsies",
    "horsies.config": (
        "AppConfig CustomQueueConfig PayloadPolicy PostgresConfig Queue QueueMode RecoveryConfig "
        "RetentionConfig WorkerConfig WorkerResilienceConfig"
    ),
    "horsies.task_context": "AsyncCurrentTask CurrentTask current_async_task current_batch current_task",
    "horsies.db.queries.tasks": "TaskLogLine TaskProgress",
    "horsies.enqueue": "TaskSendOptions",
    "horsies.errors": (
        "DatabaseError ErrorCode HorsiesError MultipleValidationErrors RateLimited ResultUnavailable SendError SignalTimeout "
        "TaskCancelled TaskExpired TaskFailed TaskFailure TaskNotFound TaskTimeout UnwrapError ValidationReport "
        "WorkflowContextMissingIdError WorkflowValidationError"
    ),
    "horsies.events": "Event",
    "horsies.handle": "StepInfo TaskHandle",
    "horsies.middleware": "log_context",
    "horsies.registry": "ChildProcessStartHook",
    "horsies.result": (
        "BrokerOperationError BrokerResult Err HandleOperationError HandleResult Ok Result "
        "SubWorkflowError TaskAttemptInfo TaskError TaskInfo TaskResult TaskSendError TaskSendPayload "
        "TaskSendResult WorkflowStartError WorkflowStartResult as_result is_err is_ok"
    ),
    "horsies.retry": "ExceptionMapper RetryPolicy",
    "horsies.schedule.api": "ScheduleError ScheduleErrorCode ScheduleInfo ScheduleResult",
    "horsies.schedule.model": "ScheduleConfig TaskSchedule",
    "horsies.schedule.patterns": (
        "BothDays ByMonthDay ByWeekday CronEnumRange CronEnumStep CronEnumValues CronEvery CronRange "
        "CronSchedule CronStep CronValues DailySchedule DaySelector EitherDay EveryDay HourlySchedule "
        "IntervalSchedule Month MonthlySchedule SchedulePattern Weekday WeeklySchedule"
    ),
    "horsies.status": (
        "BrokerErrorCode BuiltInTaskCode ContractCode HandleErrorCode OperationalErrorCode "
        "OutcomeCode RetrievalCode TASK_TERMINAL_STATES TaskAttemptOutcome TaskSendErrorCode "
        "TaskStatus WORKFLOW_TASK_TERMINAL_STATES WORKFLOW_TERMINAL_STATES WorkflowStartErrorCode "
        "WorkflowStatus WorkflowTaskStatus"
    ),
    "horsies.workflow.context": "WorkflowContext WorkflowMeta",
    "horsies.workflow.definition": "WorkflowDefinition",
    "horsies.workflow.flow": "Flow chain group",
    "horsies.workflow.handle": "SubWorkflowSummary WorkflowHandle WorkflowTaskInfo",
    "horsies.workflow.nodes": (
        "AnyNode NodeKey OnError SubWorkflowNode SuccessCase SuccessPolicy TaskNode from_node "
        "map_node signal_node sleep_node slugify"
    ),
    "horsies.workflow.spec": (
        "WorkflowSpec pause_workflow pause_workflow_sync resume_workflow resume_workflow_sync "
        "start_workflow start_workflow_async"
    ),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # a checker would take any attribute for a valid one
    __all__ = sorted(_MODULE_OF)

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
