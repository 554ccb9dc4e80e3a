import numpy as np

from holdfast_trainer.data.fingerprint import fingerprint

TOKENS = np.arange(12, dtype=np.uint16).reshape(2, 6)


def test_sixteen_bytes_that_are_the_same_for_the_same_samples() -> None:
    print_ = fingerprint([0, 0], [4, 9], TOKENS)
    assert len(print_) == 16
    assert print_ == fingerprint([0, 0], [4, 9], TOKENS.copy())


def test_window_epoch_order_and_content_all_count() -> None:
    damaged = TOKENS.copy()
    damaged[1, 5] += 1
    prints = {
        fingerprint([0, 0], [4, 9], TOKENS),
        fingerprint([0, 0], [4, 8], TOKENS),
        fingerprint([1, 1], [4, 9], TOKENS),
        fingerprint([0, 0], [9, 4], TOKENS),
        fingerprint([0, 0], [4, 9], damaged),
    }
    assert len(prints) == 5
