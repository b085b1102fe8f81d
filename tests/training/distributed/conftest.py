"""Two gloo ranks, which start once: each imports torch and what Dynamo needs."""

from collections.abc import Iterator

import pytest

from tests.support.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as started:
        yield started
