"""schemathesis makes requests from our own OpenAPI document: none is a fault of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.conftest import RunningServer


@pytest.mark.clients
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
def test_no_request_of_the_document_is_a_fault(scripted: RunningServer, case_count: Callable[[int, int], int]) -> None:
    import hypothesis
    import schemathesis

    schema = schemathesis.openapi.from_url(f"{scripted.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert operations
    statuses: set[int] = set()
    for operation in operations:
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

            @hypothesis.settings(
                max_examples=case_count(20, 100),
                derandomize=True,
                database=None,
                deadline=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                response = case.call()
                statuses.add(response.status_code)
                assert response.status_code < 500, (response.status_code, case.as_curl_command(), response.text)
                if response.status_code >= 400:
                    assert len(response.content) <= 2048

            send()
    assert 200 in statuses
    assert 400 in statuses
