# SPDX-License-Identifier: Apache-2.0
"""FavorAttention: what it owns, what it saves, when it changes."""

from __future__ import annotations

import copy

import pytest
import torch
from cases import D, H, L, M, assert_far, assert_near, inputs

import performer


def test_equals_the_function():
    tensors = inputs()
    for is_causal in (False, True):
        module = performer.FavorAttention(D, M, is_causal=is_causal, seed=3)
        expected = performer.attention(*tensors, is_causal=is_causal, num_features=M, seed=3)
        assert torch.equal(module(*tensors), expected)
        assert torch.equal(module.eval()(*tensors), expected)


@pytest.mark.parametrize(
    "change",
    [
        {"is_causal": True},
        {"feature_map": "relu"},
        {"projection": "iid"},
        {"row_norm": "sqrt_d"},
        {"seed": 1},
        {"layer": 1},
        {"scale": 0.1},
        {"feature_eps": 0.1},
        {"renormalize": False},
        {"num_matrices": H},
        {"num_features": 8},
        {"feature_map": "elu1", "projection": None},
    ],
    ids=lambda change: "-".join(map(str, change.items())),
)
def test_every_option_has_an_effect(change):
    tensors = inputs()
    plain = performer.FavorAttention(D, **{"num_features": M})
    assert_far(
        performer.FavorAttention(D, **{"num_features": M, **change})(*tensors), plain(*tensors)
    )


def test_masks_segments_and_states_pass_through():
    tensors = inputs()
    module = performer.FavorAttention(D, M, is_causal=True, layout="BLHD", enable_gqa=True)
    turned = [x.transpose(1, 2) for x in inputs(heads=2)]
    keep = torch.tensor([True] * 3 + [False] * (L - 3))
    offsets = torch.tensor([0, 3, L])
    named = {"is_causal": True, "num_features": M, "layout": "BLHD", "enable_gqa": True}
    for given in ({"attn_mask": keep}, {"cu_seqlens": offsets}):
        assert torch.equal(module(*turned, **given), performer.attention(*turned, **given, **named))
    state = module.new_state()
    out, after = module(*turned, initial_state=state, return_state=True)
    assert (state.position, after.position) == (0, L)
    assert_near(out, module(*turned))
    assert len(tensors) == 3


def test_redraw_is_part_of_the_state_dict():
    tensors = inputs()
    module = performer.FavorAttention(D, M, num_matrices=H, seed=2)
    first = module(*tensors)
    module.redraw()
    second = module(*tensors)
    assert_far(first, second)
    assert int(module.redraw_index) == 1
    expected = torch.stack(
        [performer.draw_projection(M, D, seed=2, head=head, redraw=1) for head in range(H)]
    )
    assert torch.equal(module.projection, expected)
    restored = performer.FavorAttention(D, M, num_matrices=H, seed=9)
    assert restored.load_state_dict(module.state_dict()).missing_keys == []
    assert torch.equal(restored(*tensors), second)
    assert int(restored.redraw_index) == 1
    module.redraw(0)
    assert torch.equal(module(*tensors), first)


def test_streams_keep_their_matrix_through_a_redraw():
    tensors = inputs()
    module = performer.FavorAttention(D, M, is_causal=True)
    whole = module(*tensors)
    state = module.new_state()
    _, returned = module(*(x[:, :, :3] for x in tensors), return_state=True)
    module.redraw()
    assert_near(state.step(*tensors), whole)
    assert_near(returned.step(*(x[:, :, 3:] for x in tensors)), whole[:, :, 3:])


def test_fitted_parameters_are_saved():
    tensors = inputs()
    q, k, _ = tensors
    module = performer.FavorAttention(D, M, feature_map="favor_sharp_diagonal", is_causal=True)
    with pytest.raises(ValueError, match="^causal_forward: map_parameters is null, expected"):
        module(*tensors)
    module.fit(q, k)
    out = module(*tensors)
    statistics = performer.fit_feature_map(q, k, "favor_sharp_diagonal")
    assert torch.equal(module.map_parameters, statistics)
    restored = performer.FavorAttention(D, M, feature_map="favor_sharp_diagonal", is_causal=True)
    restored.load_state_dict(module.state_dict())
    assert torch.equal(restored(*tensors), out)
    assert torch.equal(copy.deepcopy(module)(*tensors), out)


def test_casts_leave_the_matrix_as_it_is():
    module = performer.FavorAttention(D, M)
    before = module.projection.clone()
    for cast in (module.bfloat16, module.half, module.double):
        assert torch.equal(cast().projection, before)
    assert module.projection.dtype == torch.float32


def test_no_parameters_and_a_readable_form():
    module = performer.FavorAttention(D, M)
    assert list(module.parameters()) == []
    assert sorted(module.state_dict()) == ["projection", "redraw_index"]
    assert "feature_map=positive, projection=orthogonal" in repr(module)
