# SPDX-License-Identifier: Apache-2.0
"""DecodeState: streams in parts, forks, and what is refused."""

from __future__ import annotations

import copy

import pytest
import safetensors.torch
import torch
from cases import B, D, E, H, L, assert_far, assert_near, inputs, matrix, padding

import performer


def part(tensors, begin, end):
    return [x[:, :, begin:end] for x in tensors]


@pytest.mark.parametrize("heads", [H, 2])
@pytest.mark.parametrize("feature_map", ["positive", "relu", "hyperbolic", "trig"])
def test_streams_equal_the_whole_pass(feature_map, heads):
    tensors = inputs(heads=heads)
    named = {"is_causal": True, "feature_map": feature_map, "enable_gqa": True, "num_features": 8}
    # The denominators of trig may be near 0, where no bound on the quotients holds.
    named["renormalize"] = feature_map != "trig"
    whole = performer.attention(*tensors, **named)
    for first in (1, 2, 5, L):
        out, state = performer.attention(*part(tensors, 0, first), return_state=True, **named)
        rows = [out]
        rows += [state.step(*part(tensors, t, t + 1), enable_gqa=True) for t in range(first, L)]
        assert state.position == L
        assert_near(torch.cat(rows, 2), whole, 1e-5 * (1 + float(whole.abs().max())))


def test_calls_continue_states_without_changing_them():
    tensors = inputs()
    named = {"is_causal": True, "projection": matrix(), "return_state": True}
    whole = performer.attention(*tensors, is_causal=True, projection=matrix())
    _, first = performer.attention(*part(tensors, 0, 3), **named)
    for _ in range(2):
        out, second = performer.attention(*part(tensors, 3, L), initial_state=first, **named)
        assert_near(out, whole[:, :, 3:])
        assert (first.position, second.position) == (3, L)
    last = performer.attention(
        *part(tensors, 3, L), is_causal=True, projection=matrix(), initial_state=first
    )
    assert torch.equal(last, out)


@pytest.mark.parametrize("fork", [copy.copy, copy.deepcopy, performer.DecodeState.copy])
def test_copies_fork_the_stream(fork):
    tensors = inputs()
    state = performer.DecodeState(matrix())
    state.step(*part(tensors, 0, 4))
    other = fork(state)
    different = state.step(*part(tensors, 0, 1))
    assert_far(different, other.copy().step(*part(tensors, 4, 5)))
    assert (state.position, other.position) == (5, 4)
    whole = performer.attention(*tensors, is_causal=True, projection=matrix())
    assert_near(other.step(*part(tensors, 4, 5)), whole[:, :, 4:5])


def test_merged_states_have_seen_both_parts():
    tensors = inputs()
    parts = [part(tensors, 0, 2), part(tensors, 2, 5)]
    states = [performer.DecodeState(matrix()) for _ in parts]
    for state, tokens in zip(states, parts):
        state.step(*tokens)
    whole = performer.attention(*tensors, is_causal=True, projection=matrix())
    for first, second in (states, states[::-1]):
        merged = first.merge(second)
        assert merged.position == 5
        assert_near(merged.step(*part(tensors, 5, 6)), whole[:, :, 5:6])
    assert [state.position for state in states] == [2, 3]
    with pytest.raises(ValueError, match="^merge: projection differs between the states, expected"):
        states[0].merge(performer.DecodeState(matrix(rows=4)))
    small = performer.DecodeState(matrix())
    small.step(*(x[:1] for x in parts[0]))
    with pytest.raises(ValueError, match="^merge: .*expected"):
        states[0].merge(small)


def test_steps_take_masks_and_layouts():
    tensors = inputs()
    mask = padding()
    whole = performer.attention(
        *tensors, is_causal=True, projection=matrix(), key_padding_mask=mask
    )
    rows = []
    state = performer.DecodeState(matrix())
    for t in range(L):
        row = [x.transpose(1, 2) for x in part(tensors, t, t + 1)]
        rows.append(state.step(*row, key_padding_mask=mask[:, t : t + 1], layout="BLHD"))
    assert_near(torch.cat(rows, 1).transpose(1, 2), whole)
    assert rows[0].shape == (B, 1, H, E)


def test_options_of_a_stream_have_effects():
    tensors = inputs()
    plain = performer.DecodeState(matrix()).step(*tensors)
    statistics = torch.tensor([-2.0])
    for change in (
        {"feature_map": "relu"},
        {"scale": 0.1},
        {"feature_eps": 0.1},
        {"renormalize": False},
        {"feature_map": "optimal_positive", "map_parameters": statistics},
    ):
        assert_far(performer.DecodeState(matrix(), **change).step(*tensors), plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_streams_take_sixteen_bits(dtype):
    tensors = [x.to(dtype) for x in inputs()]
    whole = performer.attention(*(x.float() for x in tensors), is_causal=True, projection=matrix())
    state = performer.DecodeState(matrix())
    rows = [state.step(*part(tensors, 0, 3))]
    rows += [state.step(*part(tensors, t, t + 1)) for t in range(3, L)]
    assert rows[0].dtype == rows[-1].dtype == dtype
    assert_near(torch.cat(rows, 2), whole, 1e-2)


def test_snapshots_go_on_in_the_same_bits(tmp_path):
    tensors = inputs()
    options = {"feature_map": "hyperbolic", "scale": 0.4}
    state = performer.DecodeState(matrix(), **options)
    state.step(*part(tensors, 0, 4))
    data = state.to_bytes()
    state.save(tmp_path / "state.safetensors")
    assert (tmp_path / "state.safetensors").read_bytes() == data
    restored = [
        performer.DecodeState.from_bytes(data, matrix(), **options),
        performer.DecodeState.load(tmp_path / "state.safetensors", matrix(), **options),
    ]
    expected = state.step(*part(tensors, 4, 5))
    for other in restored:
        assert other.position == 4
        assert torch.equal(other.step(*part(tensors, 4, 5)), expected)
    assert performer.DecodeState.from_bytes(data, matrix(), **options).to_bytes() == data
    tensors_of_file = safetensors.torch.load(data)
    assert tensors_of_file["S"].shape == (B, H, 2 * matrix().shape[0], E)


def test_snapshots_of_other_streams_are_refused(tmp_path):
    state = performer.DecodeState(matrix())
    state.step(*inputs())
    data = state.to_bytes()
    load = performer.DecodeState.from_bytes
    for given in (
        (data, matrix() + 1),
        (data[:-1], matrix()),
        (b"", matrix()),
        (data[:-1] + bytes([data[-1] ^ 1]), matrix()),
    ):
        with pytest.raises(RuntimeError, match="^bytes of a state: ") as caught:
            load(*given)
        assert not isinstance(caught.value, ValueError)
    with pytest.raises(RuntimeError, match="^bytes of a state: "):
        load(data, matrix(), feature_map="exp")
    with pytest.raises(RuntimeError, match="missing.safetensors"):
        performer.DecodeState.load(tmp_path / "missing.safetensors", matrix())
    with pytest.raises(ValueError, match="^DecodeState: projection is None, expected a matrix"):
        performer.DecodeState(None, feature_map="exp").to_bytes()


def test_what_is_refused():
    tensors = inputs()
    named = {"is_causal": True, "projection": matrix()}
    _, state = performer.attention(*tensors, return_state=True, **named)
    with pytest.raises(ValueError, match="^attention: is_causal is False, expected True"):
        performer.attention(*tensors, projection=matrix(), return_state=True)
    with pytest.raises(ValueError, match="^attention: feature_map differs from initial_state's"):
        performer.attention(*tensors, initial_state=state, feature_map="relu", **named)
    with pytest.raises(ValueError, match="^attention: projection differs from initial_state's"):
        performer.attention(*tensors, is_causal=True, initial_state=state, num_features=6)
    leaf = tensors[0].clone().requires_grad_()
    with pytest.raises(ValueError, match="^step: gradients are recorded, expected torch.no_grad"):
        state.step(leaf, *tensors[1:])
    with torch.no_grad():
        state.step(leaf, *tensors[1:])
    with pytest.raises(ValueError, match="state has B, H, M, E = 2, 4, 6, 3, expected 1, 4, 6, 3"):
        state.step(*(x[:1] for x in part(tensors, 0, 1)))
    with pytest.raises(ValueError, match="^causal_forward: there are 2 segments, expected 1"):
        offsets = torch.tensor([0, 3, L])
        performer.attention(*tensors, return_state=True, cu_seqlens=offsets, **named)
    empty = performer.DecodeState(torch.randn(4, D + 1))
    with pytest.raises(ValueError, match="projection is Float of shape"):
        empty.step(*tensors)
    with pytest.raises(TypeError, match="q has dtype Double, expected Float, BFloat16 or Half"):
        performer.DecodeState(matrix()).step(*inputs(torch.float64))
