"""A module of a user's credential that fails when it is imported, with a secret in its text."""

#: No form that could be recognised as a secret.
SECRET = "correct-horse"

raise RuntimeError(f"the vault does not know {SECRET}")
