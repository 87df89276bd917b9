import typer

from spark_ehbalance.emulator.cli import emulator
from spark_ehbalance.settings.option_groups import expanded

typer.run(expanded(emulator))
