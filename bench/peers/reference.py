# SPDX-License-Identifier: Apache-2.0
"""Attention of one head in its plainest form, in the precision of its arguments: q, k, v [L, D] ->
[L, D], differentiable. In float64 it is what errors are measured against; in float32 its own error
is the measure of what plain float32 code loses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import normalize, scaled_dot_product_attention

from peers.problem import Form

Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

RELU_EPS = 1e-3
_CHUNK = 256
_SELF_SCORE = -5e4  # what LSH attention gives a token's score with itself


def features(x: torch.Tensor, w: torch.Tensor, form: Form) -> torch.Tensor:
    """phi(x): [L, D] -> [L, M]. Without a stabiliser, which standard normal rows do not need."""
    if form.feature_map == "relu":
        return torch.relu(x * form.scale**0.5 @ w.T) + RELU_EPS
    x = x * x.shape[-1] ** -0.25
    return torch.exp(x @ w.T - x.square().sum(-1, keepdim=True) / 2)


def linear_attention(w: torch.Tensor, form: Form) -> Function:
    """sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j) over all keys j, or over j <= i."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        matrix = w.to(q.dtype)
        phi_q, phi_k = features(q, matrix, form), features(k, matrix, form)
        values = torch.cat([v, torch.ones_like(v[:, :1])], dim=-1)
        if not form.causal:
            sums = phi_q @ (phi_k.T @ values)
            return sums[:, :-1] / sums[:, -1:]
        state = torch.zeros_like(phi_k[:1].T @ values[:1])
        rows = []
        for a, b, c in zip(*(x.split(_CHUNK) for x in (phi_q, phi_k, values))):
            rows.append(a @ state + (a @ b.T).tril() @ c)
            state = state + b.T @ c
        sums = torch.cat(rows)
        return sums[:, :-1] / sums[:, -1:]

    return attend


def exact_attention(causal: bool) -> Function:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x[None, None] for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=causal)[0, 0]

    return attend


def shared_qk_attention() -> Function:
    """What LSH attention approximates: queries are keys, keys have norm 1, and a token attends to
    itself only if there is no other. Ignores k."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ normalize(q, dim=-1).T / q.shape[-1] ** 0.5
        alone = torch.eye(len(q), dtype=torch.bool)
        return scores.masked_fill(alone, _SELF_SCORE).softmax(-1) @ v

    return attend


def truth_of(form: Form, w: torch.Tensor) -> tuple[Function, str]:
    """What the results of a form are measured against, and its name."""
    if form.has_features:
        return linear_attention(w, form), "the same features in float64"
    if form.feature_map == "lsh":
        return shared_qk_attention(), "exact shared-QK attention in float64"
    return exact_attention(form.causal), "exact attention in float64"


def results(attend: Function, head: list[torch.Tensor], backward: bool) -> list[torch.Tensor]:
    """[out], or with `backward` [dq, dk, dv], of q, k, v, dout of one head."""
    q, k, v, dout = head
    if not backward:
        with torch.no_grad():
            return [attend(q, k, v)]
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return list(torch.autograd.grad(attend(*leaves), leaves, dout, materialize_grads=True))


def relative_error(got: list[torch.Tensor], truth: list[torch.Tensor]) -> float:
    """The largest |got - truth| / |truth| (root of the sum of squares) of the tensors."""
    return max(
        float((a.double() - b).norm() / b.norm()) for a, b in zip(got, truth, strict=True)
    )


def within_budget(
    got: list[torch.Tensor], truth: list[torch.Tensor], plain: list[torch.Tensor]
) -> bool:
    """Whether `got` errs at most four times as much as `plain` plus 4 eps of the size, both in the
    largest and in the root mean square error; never for values that are not finite. The tests of
    the kernels allow twice what loops over single tokens lose; the matrix products that `plain` is
    made of sum in blocks and lose less than such loops."""
    eps = torch.finfo(torch.float32).eps
    for a, b, c in zip(got, truth, plain, strict=True):
        for size in (lambda x: float(x.abs().max()), lambda x: float(x.square().mean().sqrt())):
            budget = 4 * size(c.double() - b) + 4 * eps * size(b)
            if not size(a.double() - b) <= budget:
                return False
    return True
