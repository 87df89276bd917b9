import typer

from ..option_groups import expanded
from .cli import emulator

typer.run(expanded(emulator))
