import pytest

pytest.register_assert_rewrite("tests.stores.store_conformance")
