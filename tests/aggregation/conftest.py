from __future__ import annotations

import pytest

from privfair.secure_aggregation import KeyPair, new_keys


@pytest.fixture(scope="session")
def bfv_keys() -> KeyPair:
    return new_keys("bfv")


@pytest.fixture(scope="session")
def ckks_keys() -> KeyPair:
    return new_keys("ckks")
