"""SavedBytes and LiveBytes on computations whose bytes are known."""

import torch

from gateup.ops.tally import LiveBytes, SavedBytes

ELEMENTS = 1000  # 4,000 bytes in float32


def test_saved_counts_a_storage_once_and_leaves_out_parameters():
    weight = torch.nn.Parameter(torch.ones(ELEMENTS))
    x = torch.ones(ELEMENTS, requires_grad=True)
    with SavedBytes(skip=[weight]) as saved:
        y = (x * weight) * x  # keeps x (twice), weight, and the product
    assert saved.nbytes == 2 * 4 * ELEMENTS
    y.sum().backward()
    saved.forget()
    assert saved.nbytes == 0


def test_saved_may_be_entered_again():
    x = torch.ones(ELEMENTS, requires_grad=True)
    saved = SavedBytes()
    for _ in range(2):
        with saved:
            x.exp()  # keeps its result
        x.sin()  # keeps x, outside
    assert saved.nbytes == 2 * 4 * ELEMENTS


def test_live_knows_what_has_gone():
    x = torch.ones(ELEMENTS)
    with LiveBytes() as live:
        y = x + 1
        y = y + 1  # two alive while the second is made
        z = y.view(10, -1)  # no storage of its own
        del y, z
        x.add_(1)  # in place
        x + 1
    assert live.peak == 2 * 4 * ELEMENTS
    assert live.live == 0


def test_live_leaves_out_sizes():
    x = torch.ones(ELEMENTS)
    with LiveBytes(ignore={4 * ELEMENTS}) as live:
        y = x + 1
        z = y.double()
    assert (live.peak, z.numel()) == (8 * ELEMENTS, ELEMENTS)
