"""The errors, under their documented import path."""

from horsies.errors import ConfigurationError as ConfigurationError
from horsies.errors import ErrorCode as ErrorCode
from horsies.errors import HorsiesError as HorsiesError
from horsies.errors import MultipleValidationErrors as MultipleValidationErrors
from horsies.errors import RegistryError as RegistryError
from horsies.errors import SourceLocation as SourceLocation
from horsies.errors import TaskDefinitionError as TaskDefinitionError
from horsies.errors import ValidationReport as ValidationReport
from horsies.errors import WorkflowContextMissingIdError as WorkflowContextMissingIdError
from horsies.errors import WorkflowValidationError as WorkflowValidationError
