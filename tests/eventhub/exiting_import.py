"""A user's credential module that exits the process when imported, with a secret in the exit message."""

import sys

sys.exit("the vault does not know correct-horse")
