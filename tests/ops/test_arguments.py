"""What is refused before anything is computed."""

from __future__ import annotations

import pytest
import torch

from gateup.errors import UsageError
from gateup.ops.gated_mlp import gated_mlp
from gateup.ops.options import MLPOptions
from tests.ops.inputs import tensors


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("options", [MLPOptions(), MLPOptions(rounding="wide", tile=3)])
def test_sparse_tensors_are_refused_by_name(options):
    x, weights, _ = tensors(0, torch.float32)
    sparse = weights._replace(up=weights.up.to_sparse_csr())
    with pytest.raises(UsageError, match=r"up is sparse_csr, shape \(112, 48\)"):
        gated_mlp(x, sparse, options=options)
    with pytest.raises(UsageError, match=r"x is sparse_coo, shape \(37, 48\)"):
        gated_mlp(x.to_sparse(), weights, options=options)
