"""What every encoding and every attention layer promises, as test classes to inherit.

A subclass supplies `create` and the formula of its encoding; pytest then collects every test of the contract for it.
Comparisons are by the error budget, against attention by its definition (`convattn.testing.dense`).
"""

from convattn.testing.attention_contract import GEOMETRIES, AttentionContract
from convattn.testing.encoding_contract import EncodingContract, stir

__all__ = ["GEOMETRIES", "AttentionContract", "EncodingContract", "stir"]
