"""What the jobs for spark-submit share: settings from Spark's properties, the main program, tables and their checks.

A job is a class of settings, and a function that works with them:

main(Settings, lambda spark, settings: start(spark, settings, rows))
"""

from spark_ehbalance.jobs.program import main, say
from spark_ehbalance.jobs.settings import PREFIX, JobSettings, SettingError, group, hub, required

__all__ = ["PREFIX", "JobSettings", "SettingError", "group", "hub", "main", "required", "say"]
