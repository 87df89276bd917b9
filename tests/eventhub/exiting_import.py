"""A module of a user's credential that ends the process when it is imported, with a secret in its text."""

import sys

sys.exit("the vault does not know correct-horse")
