import typer

from .cli import emulator

typer.run(emulator)
