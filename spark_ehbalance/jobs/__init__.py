"""Jobs for spark-submit: settings from Spark's properties, and the main program.

A job is a class of settings and a function that runs with them:

main(Settings, lambda spark, settings: start(spark, settings, rows))
"""

from spark_ehbalance.jobs.program import main
from spark_ehbalance.jobs.settings import PREFIX, JobSettings, SettingError

__all__ = ["PREFIX", "JobSettings", "SettingError", "main"]
