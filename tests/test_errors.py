"""Every error in the package has a condition in the table, with the parameters of its sentence."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import spark_ehbalance
from spark_ehbalance import errors
from spark_ehbalance.error_conditions import CONDITIONS
from spark_ehbalance.errors import DataLossError, EhBalanceError

_ROOT = Path(spark_ehbalance.__file__).parent


def _calls() -> Iterator[tuple[str, ast.Call]]:
    """Calls in the package whose first argument is a condition, with their locations."""
    for path in sorted(_ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            first = node.args[0] if isinstance(node, ast.Call) and node.args else None
            if isinstance(first, ast.Constant) and str(first.value).startswith("EHB_"):
                assert isinstance(node, ast.Call)
                yield f"{path.relative_to(_ROOT)}:{node.lineno}", node


def test_errors_have_the_parameters_of_their_sentence() -> None:
    for place, call in _calls():
        condition = CONDITIONS[ast.literal_eval(call.args[0])]
        given = {keyword.arg for keyword in call.keywords}
        if condition.error in ast.unparse(call.func) and None not in given:
            assert given == condition.parameters, place


def test_conditions_are_in_the_table_with_an_error_class() -> None:
    raised = {ast.literal_eval(call.args[0]) for _, call in _calls()}
    assert all(hasattr(errors, condition.error) for condition in CONDITIONS.values())
    assert raised <= set(CONDITIONS)


@pytest.mark.parametrize("condition", ["", "The command was rejected.", "ehb_command_rejected", "EHB_"])
def test_unknown_condition_is_rejected_at_construction(condition: str) -> None:
    with pytest.raises(KeyError, match=f"unknown error condition {condition!r}"):
        EhBalanceError(condition, reason="it is late")


@pytest.mark.parametrize("parameters", [{}, {"reasons": "it is late"}, {"reason": "it is late", "order": "seek"}])
def test_wrong_parameters_are_rejected_at_construction(parameters: dict[str, str]) -> None:
    with pytest.raises(TypeError, match=r"EHB_COMMAND_REJECTED has the parameters \['reason'\], not "):
        EhBalanceError("EHB_COMMAND_REJECTED", **parameters)


def test_errors_of_another_process_keep_class_and_parameters() -> None:
    """`ProcessPoolExecutor` pickles them, as Spark does."""
    sent = {
        name: getattr(errors, condition.error)(name, **dict.fromkeys(condition.parameters, 1))
        for name, condition in CONDITIONS.items()
    }
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        tasks = {name: processes.submit(_raise, error) for name, error in sent.items()}
        received = {name: task.exception(60) for name, task in tasks.items()}
    for name, error in received.items():
        assert isinstance(error, EhBalanceError)
        assert (type(error), error.condition, error.parameters) == (type(sent[name]), name, sent[name].parameters)
        assert str(error) == str(sent[name])


def _raise(error: EhBalanceError) -> None:
    raise error


@pytest.mark.parametrize("remote", [False, True])
def test_error_contains_its_condition_and_a_link_to_the_remedy(remote: bool) -> None:
    error = DataLossError("EHB_LEASE_TABLE_REPLACED", known="one", found="two\n")
    if remote:
        error = pickle.loads(pickle.dumps(error))
    assert isinstance(error, DataLossError)
    assert (error.condition, error.parameters) == ("EHB_LEASE_TABLE_REPLACED", {"known": "one", "found": "two\n"})
    assert str(error) == (
        "[EHB_LEASE_TABLE_REPLACED] The lease table has id two\\n; the query used id one. "
        "Remedy: docs/errors.md#ehb_lease_table_replaced"
    )


def test_table_recreated_on_purpose_needs_only_a_new_checkpoint() -> None:
    before, separator, after = CONDITIONS["EHB_LEASE_TABLE_REPLACED"].remedy.partition("Otherwise")
    assert "start the query with a new `checkpointLocation`" in before
    assert separator
    assert "create-a-table-from-positions" in after
