# SPDX-License-Identifier: Apache-2.0
"""Hadamard matrices in compact form: the same attention as by the matrices they stand for."""

from __future__ import annotations

import pytest
import torch
from cases import D, H, L, M, assert_far, assert_near, inputs, padding

import performer

ops = torch.ops.performer


def drawn(heads: int | None = None, **named: object) -> torch.Tensor:
    """Rows for two blocks of D; with `heads`, a matrix for each."""
    named = {"kind": "hadamard", "seed": 3, **named}
    if heads is None:
        return performer.draw_projection(M, D, **named)
    return torch.stack([performer.draw_projection(M, D, head=h, **named) for h in range(heads)])


def gradients(function, tensors, **named):
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = function(*leaves, **named)
    out.square().sum().backward()
    return [out.detach(), *(x.grad for x in leaves)]


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("feature_map", ["positive", "relu", "hyperbolic", "trig"])
def test_equals_the_matrix(feature_map, is_causal, heads):
    tensors = inputs(heads=2)
    # The denominators of trig may be near 0, where no bound on the quotients holds.
    named = {"feature_map": feature_map, "is_causal": is_causal, "enable_gqa": True}
    named["renormalize"] = feature_map != "trig"
    dense = gradients(performer.attention, tensors, projection=drawn(heads), **named)
    compact = gradients(performer.attention, tensors, projection=drawn(heads, compact=True), **named)
    for a, b in zip(compact, dense):
        assert_near(a, b, 1e-5 * (1 + float(b.abs().max())))


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.bfloat16, 2e-2)])
def test_equals_the_matrix_in_other_types_and_beside_a_window(dtype, bound, window):
    tensors = [x.to(dtype) for x in inputs()]
    dense = performer.attention(*tensors, projection=drawn(), window=window)
    compact = performer.attention(*tensors, projection=drawn(compact=True), window=window)
    assert compact.dtype == dtype
    assert_near(compact, dense, bound)


@pytest.mark.parametrize("shape", [(5, 1), (40, 3), (70, 33), (256, 64)])
def test_every_size_of_block(shape):
    torch.manual_seed(0)
    x = torch.randn(2, 2, 20, shape[1])
    rows = [performer.draw_projection(*shape, kind="hadamard", compact=c) for c in (False, True)]
    dense, compact = (performer.attention(x, x, x, projection=w) for w in rows)
    assert_near(compact, dense)


def test_a_named_matrix_is_the_drawn_one():
    tensors = inputs()
    for feature_map in ("positive", "hyperbolic"):
        rows = ops.num_projection_rows(feature_map, 8)
        w = performer.draw_projection(rows, D, kind="hadamard", seed=4)
        named = {"feature_map": feature_map, "num_features": 8}
        by_name = performer.attention(*tensors, projection="hadamard", seed=4, **named)
        assert_near(by_name, performer.attention(*tensors, projection=w, **named))
        assert_far(by_name, performer.attention(*tensors, projection="hadamard", seed=5, **named))


@pytest.mark.parametrize("is_causal", [False, True])
def test_opcheck(is_causal):
    tensors = [x.requires_grad_() for x in inputs()]
    named = {"projection": drawn(H, compact=True), "key_padding_mask": padding()}
    torch.library.opcheck(ops.attention.default, (*tensors, is_causal), named)
    given = (M, D, "hadamard", "chi", 0, 0, 0, 0, True)
    torch.library.opcheck(ops.draw_projection.default, given)


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_graphs_equal_eager_ones(dynamic):
    torch._dynamo.reset()
    module = performer.FavorAttention(D, M, projection="hadamard", is_causal=True)

    def run(q, k, v):
        return performer.attention(q * 2, k, v, projection="hadamard") + module(q, k, v)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for a, b in zip(gradients(compiled, inputs()), gradients(run, inputs())):
        assert_near(a, b)


def test_autocast_leaves_the_compact_form_as_it_is():
    q, k, v = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = performer.attention(q, k, v, projection=drawn(compact=True))
    expected = performer.attention(
        *(x.bfloat16() for x in (q, k, v)), projection=drawn(compact=True)
    )
    assert torch.equal(out, expected)


@pytest.mark.parametrize("num_matrices", [None, H])
def test_modules_save_and_load_it(num_matrices):
    tensors = inputs()
    named = {"projection": "hadamard", "num_matrices": num_matrices}
    module = performer.FavorAttention(D, M, seed=3, **named)
    assert module.projection.dtype == torch.int32
    expected = module(*tensors)
    assert_near(expected, performer.attention(*tensors, projection=drawn(num_matrices)))
    for cast in (module.bfloat16, module.half, module.double):
        assert torch.equal(cast()(*tensors), expected)
    restored = performer.FavorAttention(D, M, seed=9, **named)
    assert_far(restored(*tensors), expected)
    assert restored.load_state_dict(module.state_dict()).missing_keys == []
    assert torch.equal(restored(*tensors), expected)
    module.redraw()
    assert_far(module(*tensors), expected)
    module.redraw(0)
    assert torch.equal(module(*tensors), expected)


def test_modules_load_either_form():
    tensors = inputs()
    module = performer.FavorAttention(D, M, projection="hadamard", seed=9)
    own = module(*tensors)
    state = {"redraw_index": torch.tensor(2), "projection": drawn()}
    module.load_state_dict(state)
    assert torch.equal(module.projection, drawn())
    assert torch.equal(module(*tensors), performer.attention(*tensors, projection=drawn()))
    module.load_state_dict({**state, "projection": drawn(compact=True)})
    assert torch.equal(module.projection, drawn(compact=True))
    module.load_state_dict(state)
    module.redraw(0)
    assert torch.equal(module(*tensors), own)


def test_streams_and_their_snapshots():
    tensors = inputs()
    parts = [[x[:, :, begin:end] for x in tensors] for begin, end in ((0, 4), (4, 5), (5, L))]
    for heads in (None, H):
        compact = drawn(heads, compact=True)
        whole = performer.attention(*tensors, is_causal=True, projection=drawn(heads))
        state = performer.DecodeState(compact)
        rows = [state.step(*parts[0]), state.step(*parts[1])]
        # A snapshot names the matrix, in whichever form it comes.
        data = state.to_bytes()
        others = [performer.DecodeState.from_bytes(data, w) for w in (compact, drawn(heads))]
        rows.append(state.step(*parts[2]))
        assert_near(torch.cat(rows, 2), whole)
        assert torch.equal(others[0].step(*parts[2]), rows[2])
        assert_near(others[1].step(*parts[2]), rows[2])
        with pytest.raises(RuntimeError, match="^bytes of a state: matrix_hash"):
            performer.DecodeState.from_bytes(data, drawn(heads, compact=True, seed=4))


def test_what_is_refused():
    q, k, v = inputs()
    narrow = performer.draw_projection(M, D - 1, kind="hadamard", compact=True)
    wide = performer.draw_projection(M, 100, kind="hadamard", compact=True)
    mixed = drawn(compact=True)
    mixed[1, 2] ^= 1
    other = torch.stack([mixed] * 3)
    for w, text in (
        (wide, r"projection is Int of shape \[6, 14\], expected 5 columns \(the compact form"),
        (narrow, "projection has in row 0 a row of head dim 3, expected whole blocks of head dim 4"),
        (mixed, "in row 1 a row of head dim 4 with other signs than the row before, expected whole"),
        (other, r"projection has shape \[3, 6, 5\], expected 1 or 4 matrices"),
        (mixed[0], r"projection is Int of shape \[5\], expected \[R, 4\]"),
        (mixed.long(), r"projection is Long of shape .*, floating point or in compact form"),
    ):
        with pytest.raises(ValueError, match=f"^bidirectional_forward: .*{text}"):
            performer.attention(q, k, v, projection=w)
    with pytest.raises(ValueError, match="^draw_structured_projection: kind is iid, expected had"):
        performer.draw_projection(M, D, kind="iid", compact=True)
    with pytest.raises(RuntimeError, match="^compact_columns: head_dim is 0, expected 1 or more"):
        ops.compact_columns(0)
