import pytest

pytest.register_assert_rewrite("tests.leases.store_conformance")
