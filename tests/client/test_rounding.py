from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedatlas.client.precision import products_like_convolutions

matmul: Any = torch.backends.cuda.matmul
convolutions: Any = getattr(torch.backends.cudnn, "conv", None)
pytestmark = pytest.mark.skipif(convolutions is None, reason="older than torch 2.9")


@pytest.fixture(params=["tf32", "ieee"])
def allowed(request: pytest.FixtureRequest) -> Iterator[str]:
    before = convolutions.fp32_precision
    convolutions.fp32_precision = request.param
    yield request.param
    convolutions.fp32_precision = before


def test_products_are_rounded_as_convolutions_are_and_only_for_a_while(allowed: str) -> None:
    before = matmul.fp32_precision
    with products_like_convolutions():
        assert matmul.fp32_precision == ("tf32" if allowed == "tf32" else before)
    assert matmul.fp32_precision == before
    assert torch.get_float32_matmul_precision() == "highest"
