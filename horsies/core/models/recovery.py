"""Recovery settings, under their documented import path."""

from horsies.config import RecoveryConfig as RecoveryConfig
