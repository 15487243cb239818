from __future__ import annotations

import numpy as np

from edgekit.graphs.padding import shown, visible

VALUES = np.arange(24.0).reshape(2, 4, 3)
MASK = np.array([[1, 1, 0, 0], [1, 0, 1, 1]])


def test_tokens_that_the_mask_hides_are_left_out():
    assert np.array_equal(visible({"attention_mask": MASK}, VALUES), VALUES[MASK == 1])


def test_tensors_that_do_not_lie_along_the_mask_stay_whole():
    feed = {"attention_mask": MASK}
    for other in (VALUES[:1], VALUES[:, :, 0], VALUES.transpose(0, 2, 1), np.float32(1)):
        assert visible(feed, np.asarray(other)) is not None
        assert visible(feed, np.asarray(other)).shape == np.shape(other)
    assert shown({}, VALUES.shape) is None
    assert shown({"attention_mask": np.ones((2, 4), int)}, VALUES.shape) is None, "nothing is hidden"
    assert shown({"attention_mask": np.zeros((2, 4), int)}, VALUES.shape) is None, "nothing would be left"
    assert shown({"attention_mask": MASK[:, None]}, VALUES.shape) is None
