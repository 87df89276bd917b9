import pytest

pytest.register_assert_rewrite("tests.lease_table.store_conformance")
