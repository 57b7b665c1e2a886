# SPDX-License-Identifier: Apache-2.0
"""Attention in linear time by random features (FAVOR+) for PyTorch.

`attention` is called as torch's scaled_dot_product_attention is; `FavorAttention` is the same as a
module that owns its random matrix, and `DecodeState` is what causal attention remembers of a
stream. Tensors are on the CPU. Wrong arguments raise ValueError, wrong types TypeError.
`torch.ops.performer` has the operators themselves.
"""

from performer._attention import attention, fit_feature_map
from performer._decode_state import DecodeState
from performer._features import draw_projection
from performer._library import library_path
from performer._method import resolve_method
from performer._module import FavorAttention

__all__ = [
    "DecodeState",
    "FavorAttention",
    "attention",
    "draw_projection",
    "fit_feature_map",
    "library_path",
    "resolve_method",
]
