"""Functions for driver programs: register the format, stop a query without duplicates, see how far it is behind."""

from spark_ehbalance.driver.lag import lag
from spark_ehbalance.driver.listener import BatchEndListener
from spark_ehbalance.driver.registration import register
from spark_ehbalance.driver.stopping import stop

__all__ = ["BatchEndListener", "lag", "register", "stop"]
