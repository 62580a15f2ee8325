"""Task results and their codes, under their documented import path."""

from horsies.result import BUILTIN_CODE_REGISTRY as BUILTIN_CODE_REGISTRY
from horsies.result import BuiltInTaskCode as BuiltInTaskCode
from horsies.result import ContractCode as ContractCode
from horsies.result import OperationalErrorCode as OperationalErrorCode
from horsies.result import OutcomeCode as OutcomeCode
from horsies.result import RetrievalCode as RetrievalCode
from horsies.result import SubWorkflowError as SubWorkflowError
from horsies.result import TaskError as TaskError
from horsies.result import TaskInfo as TaskInfo
from horsies.result import TaskResult as TaskResult
