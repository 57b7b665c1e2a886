# SPDX-License-Identifier: Apache-2.0
"""method="auto": exact attention where that is faster, features beyond."""

from __future__ import annotations

import logging

import pytest
import torch
from cases import inputs, matrix

import performer
from performer import _method


def tensors_of(length: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 1, length, 16, generator=generator) for _ in range(3)]


def test_short_sequences_are_exact_and_long_ones_are_not():
    for is_causal in (False, True):
        for length, method in ((8, "exact"), (4096, "favor")):
            chosen = performer.resolve_method(
                length, length, 16, 16, num_features=32, is_causal=is_causal
            )
            assert chosen == method
            named = {"num_features": 32, "is_causal": is_causal}
            out = performer.attention(*tensors_of(length), method="auto", **named)
            assert torch.equal(
                out, performer.attention(*tensors_of(length), method=method, **named)
            )


def test_the_choice_is_logged_once(caplog, monkeypatch):
    monkeypatch.setattr(_method, "_announced", set())
    with caplog.at_level(logging.INFO, logger="performer"):
        for _ in range(2):
            performer.attention(*inputs(), method="auto")
        performer.attention(*tensors_of(4096), method="auto", num_features=32)
    assert len(caplog.records) == 2
    assert "method auto takes exact for L = 7, S = 7, D = 4, M = 256" in caplog.text
    assert "method auto takes favor for L = 4096" in caplog.text


def test_a_given_matrix_counts_as_its_features():
    for feature_map, features in (("positive", 2), ("hyperbolic", 4)):
        lengths = [
            n
            for n in range(1, 400)
            if performer.resolve_method(n, n, 4, 3, num_features=features) == "favor"
        ]
        tensors = [torch.randn(1, 1, lengths[0], size) for size in (4, 4, 3)]
        named = {"projection": matrix(rows=2), "feature_map": feature_map}
        out = performer.attention(*tensors, method="auto", **named)
        assert torch.equal(out, performer.attention(*tensors, **named))


def test_compiled():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v: performer.attention(q, k, v, method="auto"),
        backend="aot_eager",
        fullgraph=True,
    )
    torch.testing.assert_close(compiled(*inputs()), performer.attention(*inputs(), method="exact"))


def test_what_is_refused():
    q, k, v = inputs()
    with pytest.raises(
        ValueError, match="^attention: method is 'auto' while gradients are recorded"
    ):
        performer.attention(q.requires_grad_(), k, v, method="auto")
    with torch.no_grad():
        performer.attention(q, k, v, method="auto")
    q = q.detach()
    with pytest.raises(ValueError, match="^attention: method is 'auto', expected 'favor' .a state"):
        performer.attention(q, k, v, is_causal=True, method="auto", return_state=True)
    with pytest.raises(ValueError, match="^attention: window is 2, expected 0 .method is 'auto'"):
        performer.attention(q, k, v, method="auto", window=2)
    with pytest.raises(
        ValueError, match="^resolve_method: feature_map is relu, expected one that est"
    ):
        performer.attention(q, k, v, method="auto", feature_map="relu")
