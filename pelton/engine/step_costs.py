"""How long a step takes, in units of one row's products: enough to keep prefills from holding up what is decoding.

It is a model of two numbers that the plan derives; it measures nothing, so the same requests make the same steps.

    step = read_rows + sum over rows of (1 + position / half_position)
"""

from __future__ import annotations

import msgspec

# A step in which others decode may take so many times what their tokens alone would.
MAX_STRETCH = 2.7


class StepCosts(msgspec.Struct, frozen=True):
    """read_rows:      rows whose products take as long as reading all weights once, which every step does.
    half_position:  where a row's attention takes as long as its products.
    """

    read_rows: float
    half_position: float

    def row(self, position: int) -> float:
        """One row's cost."""
        return 1.0 + position / self.half_position

    def prefill_allowance(self, decode_rows: float) -> float:
        """What prefills may cost beside decodes that cost decode_rows."""
        return (MAX_STRETCH - 1.0) * (self.read_rows + decode_rows)
