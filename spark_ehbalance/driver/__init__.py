"""Functions for driver programs: register the format, and stop a query without duplicates."""

from spark_ehbalance.driver.listener import BatchEndListener
from spark_ehbalance.driver.registration import register
from spark_ehbalance.driver.stopping import stop

__all__ = ["BatchEndListener", "register", "stop"]
