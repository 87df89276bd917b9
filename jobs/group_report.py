"""Report on the groups whose lease tables are in a folder: who owns what, what is unread, what needs attention.

    spark-submit --properties-file conf/group_report.conf jobs/group_report.py

Each run appends a row for each group and partition to a Delta table, with the time of the run, and writes a page: one
HTML file that needs no network. It reads lease tables and histories alone, so that it disturbs no query. A lease table
that cannot be read is a row and a part of the page, with the reason, and lets the job end with exit code 1, after the
others are reported. Settings: conf/group_report.conf.
"""

from __future__ import annotations

from spark_ehbalance.job import main
from spark_ehbalance.job.group_report import Settings, report

if __name__ == "__main__":
    main(Settings, report)
