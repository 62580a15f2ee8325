"""Queue settings, under their documented import path."""

from horsies.config import CustomQueueConfig as CustomQueueConfig
from horsies.config import QueueMode as QueueMode
