"""What `headwise.compare` makes of two sets of logits. The comparison with transformers itself is in `make test-peers`."""

from __future__ import annotations

import importlib.util
import math

import headwise
import numpy as np
import pytest
from conftest import MODEL


def test_differences_are_those_of_log_probabilities():
    third, quarter, half = math.log(3), math.log(4), math.log(2)
    ours = np.array([[1.0, 1.0 + third], [0.5, -2.5], [0.0, 0.1]], np.float32)
    # Of a row all logits may be moved; a vocabulary may be padded.
    theirs = np.array([[-7.0, -7.0, 9.0], [3.5, 0.5, 9.0], [2.1, 2.0, 9.0]], np.float32)
    found = headwise.compare.difference(ours, theirs)
    assert found.num_tokens == 3
    # 1/4 and 3/4 beside 1/2 and 1/2; the same; 0 and 0.1 changed places.
    assert found.by_position == pytest.approx([quarter - half, 0, 0.1], abs=1e-6)
    assert found.largest == pytest.approx(quarter - half, abs=1e-6)
    assert found.mean == pytest.approx((quarter - half + math.log(1.5) + 0.2) / 6, abs=1e-6)
    of_first = (quarter - half - math.log(1.5)) / 2
    of_last = 0.1 * math.tanh(0.05)
    assert found.divergence == pytest.approx((of_first + of_last) / 3, abs=1e-6)
    assert found.same_first == pytest.approx(1 / 3)
    assert "3 tokens" in str(found)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_what_is_missing_is_named():
    with pytest.raises(headwise.Unsupported, match=r"compare\.transformers: .*torch.*expected the packages transformers and torch"):
        headwise.compare.transformers(MODEL, "a")
