"""Functions for driver programs: register the format, run queries, and stop them without duplicates."""

from spark_ehbalance.driver.listener import BatchEndListener
from spark_ehbalance.driver.registration import register
from spark_ehbalance.driver.running import run
from spark_ehbalance.driver.stopping import stop

__all__ = ["BatchEndListener", "register", "run", "stop"]
