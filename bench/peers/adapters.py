# SPDX-License-Identifier: Apache-2.0
"""The implementations, one small function each: from a problem to the calls that are timed. Model
parts around the attention (linear layers, dropout) are left out everywhere, random matrices are
drawn once and are the problem's, and packages are imported by the adapter that needs them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from peers.problem import D, H, Form, Problem


class TorchCalls:
    """forward() and forward_backward() of a function of tensors, results as the function has them;
    heads(results) brings them to [B, H, L, D]."""

    compiles = False

    def __init__(
        self,
        attend: Callable[..., torch.Tensor],
        problem: Problem,
        inputs: list[torch.Tensor] | None = None,
        dout: torch.Tensor | None = None,
        heads: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
    ):
        self.attend = attend
        self.inputs = [problem.q, problem.k, problem.v] if inputs is None else inputs
        self.leaves = [x.detach().requires_grad_() for x in self.inputs]
        self.dout = problem.dout if dout is None else dout
        self._heads = heads

    def forward(self) -> list[torch.Tensor]:
        with torch.no_grad():
            return [self.attend(*self.inputs)]

    def forward_backward(self) -> list[torch.Tensor]:
        return list(torch.autograd.grad(self.attend(*self.leaves), self.leaves, self.dout))

    def heads(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        return [self._heads(x) for x in results]


class JaxCalls:
    compiles = True

    def __init__(self, attend: Callable[..., Any], problem: Problem):
        import jax

        # JAX attention has the heads inside: [B, L, H, D].
        arrays = [
            jax.numpy.asarray(x.transpose(1, 2).contiguous().numpy())
            for x in (problem.q, problem.k, problem.v, problem.dout)
        ]
        self.inputs, self.dout = arrays[:3], arrays[3]
        self._wait = jax.block_until_ready
        self._forward = jax.jit(attend)
        self._both = jax.jit(lambda q, k, v, dout: jax.vjp(attend, q, k, v)[1](dout))

    def forward(self) -> list[Any]:
        return [self._wait(self._forward(*self.inputs))]

    def forward_backward(self) -> list[Any]:
        return list(self._wait(self._both(*self.inputs, self.dout)))

    def heads(self, results: list[Any]) -> list[torch.Tensor]:
        import numpy

        return [torch.from_numpy(numpy.array(x)).transpose(1, 2) for x in results]


def ours(problem: Problem) -> TorchCalls:
    import performer

    form = problem.form
    options: dict[str, Any] = {"is_causal": form.causal, "feature_map": form.feature_map}
    if form.feature_map == "relu":
        options["scale"] = form.scale
    options["projection"] = problem.w
    return TorchCalls(lambda q, k, v: performer.attention(q, k, v, **options), problem)


def torch_sdpa(problem: Problem) -> TorchCalls:
    causal = problem.form.causal
    return TorchCalls(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=causal), problem
    )


def performer_pytorch(problem: Problem) -> TorchCalls:
    from performer_pytorch import FastAttention

    form = problem.form
    is_softmax = form.feature_map == "positive"
    with contextlib.redirect_stdout(sys.stderr):  # it prints which causal form it will take
        attention = FastAttention(
            D, form.num_features, causal=form.causal, generalized_attention=not is_softmax
        )
    attention.projection_matrix.copy_(problem.w)
    return TorchCalls(attention, problem)


def performer_pytorch_with_extension(problem: Problem) -> TorchCalls:
    """Its causal form on the C++ loop of pytorch-fast-transformers, which the package itself takes
    with a GPU only."""
    import fast_transformers.causal_product  # noqa: F401  (a missing one is told before timing)
    from performer_pytorch import performer_pytorch as package

    calls = performer_pytorch(problem)
    calls.attend.causal_linear_fn = package.causal_linear_attention
    return calls


def jax_favor(problem: Problem) -> JaxCalls:
    from peers import jax_favor

    form = problem.form
    return JaxCalls(jax_favor.attention(problem.w.numpy(), form.feature_map, form.causal), problem)


def torch_geometric(problem: Problem) -> TorchCalls:
    from torch_geometric.nn.attention.performer import PerformerProjection

    attention = PerformerProjection(D)
    attention.projection_matrix.copy_(problem.w)
    return TorchCalls(attention, problem)


class _Given(torch.nn.Module):
    """Stands for a linear layer: gives the projected tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tensor


def linformer(problem: Problem) -> TorchCalls:
    from linformer import LinformerSelfAttention

    attention = LinformerSelfAttention(H * D, problem.length, k=256, heads=H)
    attention.requires_grad_(False)
    attention.to_q, attention.to_k, attention.to_v = (_Given() for _ in range(3))
    attention.to_out = torch.nn.Identity()

    def join(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).flatten(2).contiguous()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        attention.to_q.tensor, attention.to_k.tensor, attention.to_v.tensor = q, k, v
        return attention(q)

    return TorchCalls(
        attend,
        problem,
        [join(x) for x in (problem.q, problem.k, problem.v)],
        join(problem.dout),
        lambda x: x.unflatten(2, (H, D)).transpose(1, 2),
    )


def reformer_pytorch(problem: Problem) -> TorchCalls:
    from reformer_pytorch import LSHAttention

    attention = LSHAttention(bucket_size=64, n_hashes=8)
    return TorchCalls(
        lambda qk, v: attention(qk, v)[0],
        problem,
        [problem.q[0], problem.v[0]],
        problem.dout[0],
        lambda x: x[None],
    )


@dataclass(frozen=True)
class Peer:
    """One implementation of one form. package: what it is imported as, or "" for ours."""

    impl: str
    form: Form
    make: Callable[[Problem], TorchCalls | JaxCalls]
    package: str
    distribution: str

    @property
    def name(self) -> str:
        return f"{self.impl}/{self.form.feature_map}" + ("/causal" if self.form.causal else "")


POSITIVE, RELU, EXACT = Form("positive"), Form("relu"), Form("exact")
CAUSAL, EXACT_CAUSAL = Form("positive", causal=True), Form("exact", causal=True)
# performer-pytorch scales relu features too; torch-geometric has M = int(D log D) and no choice.
RELU_SCALED, RELU_266 = Form("relu", scale=D**-0.5), Form("relu", num_features=266)

OURS = "performer"
PEERS = [
    Peer(OURS, POSITIVE, ours, "", ""),
    Peer(OURS, CAUSAL, ours, "", ""),
    Peer(OURS, RELU, ours, "", ""),
    Peer("torch-sdpa", EXACT, torch_sdpa, "torch", "torch"),
    Peer("torch-sdpa", EXACT_CAUSAL, torch_sdpa, "torch", "torch"),
    *(
        Peer(
            "performer-pytorch", form, performer_pytorch, "performer_pytorch", "performer-pytorch"
        )
        for form in (POSITIVE, RELU_SCALED, CAUSAL)
    ),
    Peer(
        "performer-pytorch+fast-transformers",
        CAUSAL,
        performer_pytorch_with_extension,
        "fast_transformers",
        "performer-pytorch",
    ),
    *(Peer("jax-favor", form, jax_favor, "jax", "jax") for form in (POSITIVE, RELU, CAUSAL)),
    Peer("torch-geometric", RELU_266, torch_geometric, "torch_geometric", "torch-geometric"),
    Peer("linformer", Form("linformer"), linformer, "linformer", "linformer"),
    Peer("reformer-pytorch", Form("lsh"), reformer_pytorch, "reformer_pytorch", "reformer-pytorch"),
]
