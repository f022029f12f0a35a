"""Negative controls: a small fault in the code of any path is found by the contract, in values and in gradients."""

import pytest
import torch
from tests.layers.fault_cases import AUTOCAST, GRADIENTS, VALUES
from tests.layers.layer_cases import CaseContract

from convattn.functional import Path, separable
from convattn.functional.plan import WAYS


def contract_on(fault, monkeypatch):
    """The contract of a layer that goes by the path, as its plan says."""
    if fault.path == "values":
        monkeypatch.setattr(separable, "OWN_CHANNELS", 0)
    if fault.in_tiles:
        monkeypatch.setattr(separable, "SMALL_BYTES", -1)
    contract = CaseContract()
    contract.case = fault.case
    plan = contract.made().plan(contract.images().shape)
    assert fault.path == (plan.path if plan.order == "weights" else plan.order)
    return contract


@pytest.mark.parametrize("fault", VALUES, ids=str)
def test_a_fault_in_a_path_is_found(fault, monkeypatch):
    contract = contract_on(fault, monkeypatch)
    contract.test_output_is_attention_by_definition(fault.dtype)
    fault.inject(monkeypatch)
    with pytest.raises(AssertionError, match="result: error"):
        contract.test_output_is_attention_by_definition(fault.dtype)


@pytest.mark.parametrize("fault", GRADIENTS, ids=str)
def test_a_fault_in_the_gradients_of_a_path_is_found(fault, monkeypatch):
    contract = contract_on(fault, monkeypatch)
    contract.test_gradients_are_those_of_the_definition()
    fault.inject(monkeypatch)
    contract.test_output_is_attention_by_definition(torch.float32)
    with pytest.raises(AssertionError, match=f"gradient of {fault.found}: error"):
        contract.test_gradients_are_those_of_the_definition()


@pytest.mark.parametrize("fault", AUTOCAST, ids=str)
def test_scores_of_few_digits_are_found_under_autocast(fault, monkeypatch):
    contract = contract_on(fault, monkeypatch)
    contract.test_autocast_keeps_scores_and_softmax_precise()
    fault.inject(monkeypatch)
    with pytest.raises(AssertionError, match="result: error"):
        contract.test_autocast_keeps_scores_and_softmax_precise()


def test_every_path_has_faults_of_both_kinds():
    paths = {name for name, way in WAYS.items() if issubclass(way, Path)} | {"values"}
    assert {fault.path for fault in VALUES} == {fault.path for fault in GRADIENTS} == paths
