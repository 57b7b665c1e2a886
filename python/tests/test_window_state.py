# SPDX-License-Identifier: Apache-2.0
"""Decoding with a window: states equal the causal pass with the same window."""

from __future__ import annotations

import copy

import pytest
import torch
from cases import H, L, assert_far, assert_near, inputs, matrix, padding

import performer


def part(tensors, begin, end):
    return [x[:, :, begin:end] for x in tensors]


@pytest.mark.parametrize("window, sinks", [(1, 0), (1, 2), (2, 1), (3, 0), (L, 1)])
@pytest.mark.parametrize("heads", [H, 2])
@pytest.mark.parametrize("feature_map", ["positive", "hyperbolic", "favor_sharp_diagonal"])
def test_streams_equal_the_whole_pass(feature_map, heads, window, sinks):
    tensors = inputs(heads=heads)
    named = {"is_causal": True, "feature_map": feature_map, "enable_gqa": True, "num_features": 8}
    named.update(window=window, sinks=sinks, projection="hadamard" if window == 2 else "iid")
    if feature_map == "favor_sharp_diagonal":
        named["map_parameters"] = performer.fit_feature_map(*tensors[:2], feature_map)
    whole = performer.attention(*tensors, **named)
    if window < 3:
        assert_far(whole, performer.attention(*tensors, **{**named, "window": 0, "sinks": 0}))
    for first in (1, 4, L):
        out, state = performer.attention(*part(tensors, 0, first), return_state=True, **named)
        rows = [out]
        rows += [state.step(*part(tensors, t, t + 1), enable_gqa=True) for t in range(first, L)]
        assert state.position == L
        assert_near(torch.cat(rows, 2), whole)


def test_calls_continue_states_without_changing_them():
    tensors = inputs()
    named = {"is_causal": True, "projection": matrix(), "window": 2, "sinks": 1}
    whole = performer.attention(*tensors, **named)
    _, first = performer.attention(*part(tensors, 0, 3), return_state=True, **named)
    for _ in range(2):
        rest = part(tensors, 3, L)
        out, second = performer.attention(*rest, return_state=True, initial_state=first, **named)
        assert_near(out, whole[:, :, 3:])
        assert (first.position, second.position) == (3, L)
    fork = copy.copy(first)
    fork.step(*part(tensors, 0, 1))
    assert_near(first.step(*part(tensors, 3, 4)), whole[:, :, 3:4])
    assert fork.position == first.position == 4
    with pytest.raises(ValueError, match="^attention: window differs from initial_state's"):
        performer.attention(*tensors, initial_state=first, **{**named, "window": 3})


def test_steps_take_masks_and_layouts():
    tensors = inputs()
    ignored = padding()
    named = {"projection": matrix(), "window": 1}
    weights = torch.linspace(-1, 1, H * L).reshape(1, H, 1, L)
    for masks in ({"key_padding_mask": ignored}, {"attn_mask": weights}):
        whole = performer.attention(*tensors, is_causal=True, **masks, **named)
        assert_far(whole, performer.attention(*tensors, is_causal=True, **named))
        for parts in ([1] * L, [2, 1, 4], [L]):
            rows, state, begin = [], performer.DecodeState(**named), 0
            for count in parts:
                end = begin + count
                turned = [x.transpose(1, 2) for x in part(tensors, begin, end)]
                here = {name: mask[..., begin:end] for name, mask in masks.items()}
                # A mask of keys has the same form in both layouts.
                rows.append(state.step(*turned, layout="BLHD", **here))
                begin = end
            assert_near(torch.cat(rows, 1).transpose(1, 2), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_streams_take_sixteen_bits(dtype):
    tensors = [x.to(dtype) for x in inputs()]
    named = {"projection": matrix(), "window": 1, "sinks": 1}
    whole = performer.attention(*(x.float() for x in tensors), is_causal=True, **named)
    state = performer.DecodeState(**named)
    rows = [state.step(*part(tensors, 0, 3))]
    rows += [state.step(*part(tensors, t, t + 1)) for t in range(3, L)]
    assert rows[0].dtype == rows[-1].dtype == dtype
    assert_near(torch.cat(rows, 2), whole, 1e-2)


def test_snapshots_go_on_in_the_same_bits(tmp_path):
    tensors = inputs()
    options = {"feature_map": "hyperbolic", "window": 1, "sinks": 1}
    state = performer.DecodeState(matrix(), **options)
    state.step(*part(tensors, 0, 4))
    data = state.to_bytes()
    path = tmp_path / "state.safetensors"
    state.save(path)
    assert path.read_bytes() == data
    restored = [
        performer.DecodeState.from_bytes(data, matrix(), **options),
        performer.DecodeState.load(path, matrix(), **options),
    ]
    expected = state.step(*part(tensors, 4, L))
    for other in restored:
        assert other.position == 4
        assert torch.equal(other.step(*part(tensors, 4, L)), expected)
    for change in ({"window": 2}, {"sinks": 0}, {"window": 0, "sinks": 0}):
        for load, source in (
            (performer.DecodeState.from_bytes, data),
            (performer.DecodeState.load, path),
        ):
            with pytest.raises(RuntimeError, match="window|sinks|near") as caught:
                load(source, matrix(), **{**options, **change})
            assert not isinstance(caught.value, ValueError)


def test_a_module_decodes():
    tensors = inputs()
    module = performer.FavorAttention(tensors[0].shape[-1], 8, is_causal=True, window=2, sinks=1)
    whole = module(*tensors)
    state = module.new_state()
    module.redraw()
    rows = [state.step(*part(tensors, t, t + 1)) for t in range(L)]
    assert_near(torch.cat(rows, 2), whole)


def test_what_is_refused():
    tensors = inputs()
    states = [performer.DecodeState(matrix(), window=2) for _ in range(2)]
    for state in states:
        state.step(*part(tensors, 0, 2))
    with pytest.raises(ValueError, match="^merge: the states have a window, expected none"):
        states[0].merge(states[1])
    step = states[0].step
    for given, text in (
        ([x[:1] for x in part(tensors, 2, 3)], "k has shape .*, expected .* of the state"),
        ([tensors[0][:, :, :1], *part(tensors[1:], 0, 2)], "k has 2 tokens, expected 1 .as q"),
    ):
        with pytest.raises(ValueError, match=f": {text}"):
            step(*given)
    with pytest.raises(ValueError, match="^favor_decode: key_padding_mask is Bool of shape"):
        step(*part(tensors, 2, 4), key_padding_mask=padding()[:, :1])
    with pytest.raises(TypeError, match="q has dtype Double, expected Float, BFloat16 or Half"):
        step(*inputs(torch.float64))
    with pytest.raises(ValueError, match="expected none .one stream per batch item"):
        offsets = torch.tensor([0, 3, L])
        named = {"is_causal": True, "window": 2, "return_state": True}
        performer.attention(*tensors, cu_seqlens=offsets, **named)
    with pytest.raises(ValueError, match="feature_map relu has no scores to join exact ones"):
        performer.DecodeState(matrix(), feature_map="relu", window=2).step(*tensors)
    assert states[0].position == 2
