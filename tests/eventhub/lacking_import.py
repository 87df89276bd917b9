"""A module of a user's credential that needs another one, which is not there."""

import no_such_vault  # type: ignore[import-not-found]  # noqa: F401
