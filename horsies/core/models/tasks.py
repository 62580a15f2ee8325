"""Task results and their codes, under their documented import path."""

from horsies.results import BUILTIN_CODE_REGISTRY as BUILTIN_CODE_REGISTRY
from horsies.results import BuiltInTaskCode as BuiltInTaskCode
from horsies.results import ContractCode as ContractCode
from horsies.results import OperationalErrorCode as OperationalErrorCode
from horsies.results import OutcomeCode as OutcomeCode
from horsies.results import RetrievalCode as RetrievalCode
from horsies.results import SubWorkflowError as SubWorkflowError
from horsies.results import TaskError as TaskError
from horsies.results import TaskInfo as TaskInfo
from horsies.results import TaskResult as TaskResult
