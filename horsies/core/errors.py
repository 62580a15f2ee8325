"""The errors, under their documented import path."""

from horsies.errors import ConfigurationError as ConfigurationError
from horsies.errors import DatabaseError as DatabaseError
from horsies.errors import ErrorCode as ErrorCode
from horsies.errors import HorsiesError as HorsiesError
from horsies.errors import MultipleValidationErrors as MultipleValidationErrors
from horsies.errors import RegistryError as RegistryError
from horsies.errors import ResultUnavailable as ResultUnavailable
from horsies.errors import SendError as SendError
from horsies.errors import SourceLocation as SourceLocation
from horsies.errors import TaskCancelled as TaskCancelled
from horsies.errors import TaskDefinitionError as TaskDefinitionError
from horsies.errors import TaskExpired as TaskExpired
from horsies.errors import TaskFailed as TaskFailed
from horsies.errors import TaskNotFound as TaskNotFound
from horsies.errors import TaskTimeout as TaskTimeout
from horsies.errors import UnwrapError as UnwrapError
from horsies.errors import ValidationReport as ValidationReport
from horsies.errors import WorkflowContextMissingIdError as WorkflowContextMissingIdError
from horsies.errors import WorkflowValidationError as WorkflowValidationError
