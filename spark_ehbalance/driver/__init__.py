"""Functions for driver programs: register the format, run queries, see how far they are behind, and stop them without
duplicates."""

from spark_ehbalance.driver.lag import lag
from spark_ehbalance.driver.listener import BatchEndListener
from spark_ehbalance.driver.registration import register
from spark_ehbalance.driver.running import run
from spark_ehbalance.driver.stopping import stop

__all__ = ["BatchEndListener", "lag", "register", "run", "stop"]
