"""Predicts float32 numbers that have decayed since an earlier state, as the running means of optimizers do.

Where gradients have been small since, all of Adam's second moments have lost the same part of themselves, and more or
less of it elsewhere. So they differ less from the earlier state made smaller by that part than from the earlier state.
"""

import numpy as np

from holdfast_checkpoint.codec.planes import Elements

_FRACTION, _LEADING_ONE = 0x7FFFFF, 0x800000
_MOST_LOST = 254
_SHARE_BELOW = 0.95
"""Of the numbers: what has gained since has lost less than what has merely decayed."""


def decayed(previous: Elements, lost: int) -> Elements:
    """Return the bits of numbers made smaller by ``lost`` 256ths (0 to 254) of themselves, or nearly so.

    In integers and not floating point, which must give the same wherever it is computed.
    """
    if not lost:
        return previous
    significands = np.bitwise_or(np.bitwise_and(previous, _FRACTION), _LEADING_ONE)
    np.right_shift(significands, 8, out=significands)
    np.multiply(significands, lost, out=significands)
    return np.subtract(previous, significands, out=significands)


def typical_loss(elements: Elements, previous: Elements) -> int:
    """Return how many 256ths of themselves numbers have lost that have merely decayed; 0 if they have grown."""
    comparable = np.bitwise_xor(elements, previous) <= _FRACTION  # of the same exponent
    elements, previous = elements[comparable], previous[comparable]
    if not elements.size:
        return 0
    significands = np.bitwise_or(np.bitwise_and(previous, _FRACTION), _LEADING_ONE)
    lost = (previous - elements).view(np.int32) * 256.0 / significands
    place = int(_SHARE_BELOW * lost.size)
    return int(np.clip(np.ceil(np.partition(lost, place)[place]), 0, _MOST_LOST))
