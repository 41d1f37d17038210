"""Back-ups of an installation: a directory, an S3 prefix or an archive file, with one generation per back-up.

The event log is copied, and the predictors, which cost time to train. Tables are made again from the log; API keys
belong to a machine.
"""

from accel_platform.backup.copying import BackedUp, BackupRefused, back_up
from accel_platform.backup.generations import BackupDamaged
from accel_platform.backup.recovery import GenerationCheck, open_copy, restore, verify

__all__ = ["BackedUp", "BackupDamaged", "BackupRefused", "GenerationCheck", "back_up", "open_copy", "restore", "verify"]
