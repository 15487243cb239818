from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edgekit.extends import Layers, _overlay

keys = st.sampled_from(["a", "b", "c"])
figures = st.fixed_dictionaries({"value": st.integers(1, 9), "source": st.just("x")})
tables = st.recursive(
    st.dictionaries(keys, st.integers() | figures | st.lists(st.integers(), max_size=2), max_size=3),
    lambda inner: st.dictionaries(keys, inner | st.integers() | figures, max_size=3),
    max_leaves=12,
)


def leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and "value" not in value:
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


@given(st.lists(tables, min_size=1, max_size=4))
def test_each_key_has_the_value_of_the_last_file_that_sets_it(files: list[dict[str, Any]]) -> None:
    layers = Layers()
    for number, values in enumerate(files):
        _overlay(layers, layers.values, values, f"{number}")
    merged = leaves(layers.values)
    assert merged.keys() == layers.origins.keys()
    for key, file in layers.origins.items():
        assert merged[key] == leaves(files[int(file)])[key]
        later = [leaves(values) for values in files[int(file) + 1 :]]
        assert not any(key in values for values in later)
    for key, value in leaves(files[-1]).items():
        assert merged[key] == value
        assert layers.origins[key] == f"{len(files) - 1}"
