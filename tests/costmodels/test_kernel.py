"""Kernels: output shapes, FLOP and bytes from input shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.errors import KernelError
from costmodels.kernels import KERNELS, GemmShape, TensorSpec, Work

SHAPED = {"gemm", "attention", "attention_backward", "decode"}
S, B, H, N, G, D, F, V = 8, 2, 12, 6, 3, 4, 20, 32


def t(*shape: int, dtype: str = "float16") -> TensorSpec:
    """Return a half-precision tensor."""
    return TensorSpec(shape, dtype)


def f32(*shape: int) -> TensorSpec:
    """Return a single-precision tensor."""
    return TensorSpec(shape, "float32")


def e4m3(*shape: int) -> TensorSpec:
    """Return a tensor of eight bits as forwards have it."""
    return TensorSpec(shape, "float8_e4m3fn")


def e5m2(*shape: int) -> TensorSpec:
    """Return a tensor of eight bits as gradients have it."""
    return TensorSpec(shape, "float8_e5m2")


X, Q, KV, SCORES = t(S, B, H), t(S, B, N, D), t(S, B, G, D), t(B, N, S, S)
IDS, STAT, MASK = t(S, B, dtype="int64"), f32(S, B), t(S, B, H, dtype="uint8")
LOGITS, EXP = t(S, B, V), f32(S, B, V)
E, K, C = 4, 2, 10
SCORED, SLOTS = f32(S, B, E), TensorSpec((S, B, K), "int32")
ONE_EACH = [f32(S, B, 1), *[TensorSpec((S, B, 1), "int32")] * 2]
ROWS = {"rows": (7, 0, 3, 0)}
PLACES = {"num_experts": 2, "capacity": C, "num_slots": E * C}
MASKED = {"num_experts": E, "capacity": C, "dtype": "float16"}
COUNTS, FORCED = TensorSpec((2 * E,), "int64"), {"top_k": K, "forced": (16, 0, 9, 7)}
NODES = {"parts": 2, "num_experts": E, "rows": 17}

RING = {"causal": False, "ring": "cp", "step": 1}
CACHES, SPANS = (t(S, 1, G, D), t(S, 1, G, 2)), ((0, 2, 2), (4, 3, 1))
SCALED = (TensorSpec((S, 1, 130), "float8_e4m3fn"), f32(S, 1, 2), t(S, 1, 4))
BLOCKS = {"ring": "cp", "step": 1, "blocks": 3, "factor": 1.0}
PIECE = {"size": 2, "num_gradients": 2, "num_parameters": 2}
"""Seven parameters in two tensors, of which a rank updates two."""

CASES: list[tuple[str, Sequence[TensorSpec], Mapping[str, Any], Sequence[TensorSpec]]] = [
    ("tokens", [], {"sequence_length": S, "microbatch_size": B}, [IDS]),
    ("embedding", [IDS, t(V, H)], {}, [X]),
    ("embedding_backward", [IDS, X, f32(V, H)], {}, [f32(V, H)]),
    ("add_positions", [X, t(2 * S, H)], {}, [X]),
    ("add_positions_backward", [X, f32(2 * S, H)], {}, [f32(2 * S, H)]),
    ("dropout", [X], {"probability": 0.1}, [X, MASK]),
    ("dropout_backward", [X, MASK], {"probability": 0.1}, [X]),
    ("bias_dropout_add", [X, t(H), X], {"probability": 0.1}, [X, MASK]),
    ("bias_dropout_add", [X, t(H), X], {"probability": 0.0}, [X]),
    ("bias_gradient", [t(S, B, G, N, D), f32(G, N, D)], {}, [f32(G, N, D)]),
    ("bias_gradient", [t(S, B, G, N, D)], {"dims": 3}, [t(G, N, D)]),
    ("layer_norm", [X, t(H), t(H)], {}, [X, STAT, STAT]),
    ("layer_norm_backward", [X, X, t(H), STAT, STAT, f32(H), f32(H)], {}, [X, f32(H), f32(H)]),
    ("layer_norm_backward", [X, X, t(H), STAT, STAT], {}, [X, t(H), t(H)]),
    ("rms_norm", [X, t(H)], {}, [X, STAT]),
    ("rms_norm_backward", [X, X, t(H), STAT, f32(H)], {}, [X, f32(H)]),
    ("rms_norm_backward", [X, X, t(H), STAT], {}, [X, t(H)]),
    ("norm_sums", [X], {"centred": True}, [f32(S, B, 2)]),
    ("norm_sums", [X], {"centred": False}, [f32(S, B, 1)]),
    ("norm_of_sums", [X, t(H), t(H), f32(S, B, 2)], {}, [X]),
    ("norm_of_sums", [X, t(H), f32(S, B, 1)], {}, [X]),
    ("norm_backward_sums", [X, X, t(H), f32(S, B, 2)], {}, [f32(S, B, 2)]),
    ("norm_of_sums_backward", [X, X, t(H), *[f32(S, B, 2)] * 2, f32(H), f32(H)], {}, [X, f32(H), f32(H)]),
    ("norm_of_sums_backward", [X, X, t(H), *[f32(S, B, 2)] * 2], {}, [X, t(H), t(H)]),
    ("norm_of_sums_backward", [X, X, t(H), *[f32(S, B, 1)] * 2, f32(H)], {}, [X, f32(H)]),
    ("add_bias", [t(N, D), Q], {}, [Q]),
    ("block_embedding", [IDS, t(V, H)], {"block": 1}, [X]),
    ("block_embedding", [IDS, t(V, H), X], {"block": 1}, [X]),
    ("block_embedding_backward", [IDS, X], {"block": 1, "rows": V}, [t(V, H)]),
    ("matmul", [X, t(H, F)], {}, [t(S, B, F)]),
    ("matmul", [X, t(V, H)], {"transposed": True}, [LOGITS]),
    ("matmul", [X, t(H, G, N, D), t(G, N, D)], {}, [t(S, B, G, N, D)]),
    ("matmul", [Q, t(N, D, H)], {"contract": 2}, [X]),
    ("matmul_input_gradient", [t(S, B, F), t(H, F)], {}, [X]),
    ("matmul_input_gradient", [LOGITS, t(V, H)], {"transposed": True}, [X]),
    ("matmul_input_gradient", [X, t(N, D, H)], {"contract": 2}, [Q]),
    ("matmul_weight_gradient", [X, t(S, B, F), f32(H, F)], {}, [f32(H, F)]),
    ("matmul_weight_gradient", [Q, X, f32(N, D, H)], {"contract": 2}, [f32(N, D, H)]),
    ("matmul_weight_gradient", [Q, X], {"contract": 2}, [t(N, D, H)]),
    ("matmul_weight_gradient", [X, LOGITS], {"transposed": True}, [t(V, H)]),
    ("matmul_weight_gradient", [X, LOGITS, f32(V, H)], {"transposed": True}, [f32(V, H)]),
    ("matmul_part", [X, t(H // 3, F)], {"part": (2, 3)}, [t(S, B, F)]),
    ("matmul_part", [Q, t(N // 2, D, H), X, t(H)], {"contract": 2, "part": (1, 2)}, [X]),
    ("matmul_part", [X, t(V, H // 3), LOGITS], {"transposed": True, "part": (1, 3)}, [LOGITS]),
    ("matmul_part_input_gradient", [X, t(N // 2, D, H)], {"contract": 2, "part": (0, 2)}, [Q]),
    ("matmul_part_input_gradient", [LOGITS, t(V, H // 3), X], {"transposed": True, "part": (1, 3)}, [X]),
    ("matmul_part_weight_gradient", [Q, X, f32(N // 2, D, H)], {"contract": 2, "part": (0, 2)}, [f32(N // 2, D, H)]),
    ("matmul_part_weight_gradient", [X, LOGITS], {"transposed": True, "part": (1, 3)}, [t(V, H // 3)]),
    ("add", [X, X, X], {}, [X]),
    ("matmul_piece", [t(2, B, H), t(H, F)], {"pieces": 4, "fills": False}, [t(S, B, F)]),
    ("matmul_piece", [t(2, B, H), t(H, F), t(F), t(S, B, F)], {"pieces": 4, "fills": True}, [t(S, B, F)]),
    ("matmul_piece_input_gradient", [t(2, B, F), t(H, F), X], {"pieces": 4, "fills": True}, [X]),
    ("matmul_rows", [Q, t(N, D, H)], {"contract": 2, "pieces": 4}, [t(2, B, H)]),
    (
        "matmul_pieces_weight_gradient",
        [*[t(4, B, H)] * 2, t(S, B, F), f32(H, F)],
        {"pieces": 2, "in_pieces": "x"},
        [f32(H, F)],
    ),
    ("matmul_pieces_weight_gradient", [X, *[t(4, B, F)] * 2], {"pieces": 2, "in_pieces": "dy"}, [t(H, F)]),
    ("transpose_float8", [e4m3(2, B, H)] * 4, {}, [e4m3(2, B, H)] * 4),
    (
        "float8_matmul_piece",
        [e4m3(2, B, H), f32(1), e4m3(H, F), f32(1), t(F), t(S, B, F)],
        {"pieces": 4, "fills": True, "dtype": "float16"},
        [t(S, B, F)],
    ),
    (
        "float8_matmul_piece_input_gradient",
        [e5m2(2, B, F), f32(1), e4m3(H, F), f32(1)],
        {"pieces": 4, "fills": False, "dtype": "float16"},
        [X],
    ),
    (
        "float8_matmul_rows",
        [e4m3(S, B, N, D), f32(1), e4m3(N, D, H), f32(1)],
        {"contract": 2, "pieces": 4, "dtype": "float16"},
        [t(2, B, H)],
    ),
    (
        "float8_matmul_pieces_weight_gradient",
        [e4m3(S, B, H), f32(1), *[e5m2(4, B, F), f32(1)] * 2, f32(H, F)],
        {"pieces": 2, "in_pieces": "dy", "dtype": "float16"},
        [f32(H, F)],
    ),
    ("cast_float8", [X], {"dtype": "float8_e4m3fn", "copies": 1}, [e4m3(S, B, H), f32(1)]),
    ("cast_float8", [X], {"dtype": "float8_e5m2", "copies": 2}, [e5m2(S, B, H), e5m2(S, B, H), f32(1)]),
    ("float8_matmul", [e4m3(S, B, H), f32(1), e4m3(H, F), f32(1)], {"dtype": "float16"}, [t(S, B, F)]),
    ("float8_matmul", [e4m3(S, B, H), f32(1), e4m3(H, F), f32(1), t(F)], {"dtype": "float16"}, [t(S, B, F)]),
    ("float8_matmul_input_gradient", [e5m2(S, B, F), f32(1), e4m3(H, F), f32(1)], {"dtype": "float16"}, [X]),
    ("float8_matmul_weight_gradient", [e4m3(S, B, H), f32(1), e5m2(S, B, F), f32(1)], {"dtype": "float16"}, [t(H, F)]),
    (
        "float8_matmul_weight_gradient",
        [e4m3(S, B, N, D), f32(1), e5m2(S, B, H), f32(1), f32(N, D, H)],
        {"contract": 2, "dtype": "float16"},
        [f32(N, D, H)],
    ),
    ("router_matmul", [X, t(H, E)], {}, [SCORED]),
    ("router_matmul_input_gradient", [SCORED, t(H, E)], {}, [X]),
    ("router_matmul_weight_gradient", [X, SCORED, f32(H, E)], {}, [f32(H, E)]),
    ("router_matmul_weight_gradient", [X, SCORED], {}, [t(H, E)]),
    ("route", [SCORED], {"top_k": K}, [f32(S, B, K), SLOTS, SLOTS]),
    ("route_biased", [SCORED, f32(E)], {"top_k": K, "num_groups": 2}, [f32(S, B, K), SLOTS, SLOTS]),
    ("route_biased_backward", [f32(S, B, K), SCORED, SLOTS], {}, [SCORED]),
    ("count_choices", [SLOTS, f32(E)], {}, [f32(E)]),
    ("update_bias", [f32(E), f32(E)], {}, [f32(E), f32(E)]),
    ("route_k_top_1", [SCORED], {"top_k": K}, [f32(S, B, K), SLOTS, SLOTS]),
    ("route_k_top_1_backward", [f32(S, B, K), SCORED, SLOTS], {}, [SCORED]),
    ("route_group_limited", [SCORED], {"top_k": K, "num_groups": 2}, [f32(S, B, K), SLOTS, SLOTS]),
    ("route_backward", [f32(S, B, K), SCORED, SLOTS], {"balance_loss": 0.0}, [SCORED]),
    ("route_gshard", [SCORED], {"top_k": K}, [f32(S, B, K), SLOTS, SLOTS]),
    ("route_base", [SCORED], {"top_k": 1, "capacity": S * B}, ONE_EACH),
    ("route_near", [SCORED], {"top_k": K}, [f32(S, B, K), SLOTS, SLOTS]),
    ("route_mixed", [SCORED], {"top_k": K}, [f32(S, B, K), SLOTS, SLOTS, TensorSpec((S, B, 1), "int32")]),
    ("dispatch_slots", [SLOTS, TensorSpec((S, B, 1), "int32")], PLACES, [TensorSpec((2, C, K), "int32")]),
    ("own_slots", [TensorSpec((2, 2 * C, K), "int32")], {"parts": 2}, [TensorSpec((2, 2 * C, K), "int32")]),
    ("route_expert_choice", [SCORED], {"capacity": C}, [SCORED, TensorSpec((S, B, E), "int32")]),
    ("route_dense_to_sparse", [SCORED], {"capacity": C}, [SCORED, TensorSpec((S, B, E), "int32")]),
    ("route_softmax_backward", [SCORED, SCORED], {}, [SCORED]),
    ("route_hash", [TensorSpec((S, B), "int64")], {"dtype": "float32"}, ONE_EACH),
    ("dispatch", [X, SLOTS], {"num_experts": E, "capacity": C}, [t(E, C, H)]),
    ("dispatch_backward", [t(E, C, H), SLOTS], {}, [X]),
    ("regroup", [t(E, C, H)], {"parts": 2, "by_expert": True}, [t(E // 2, 2 * C, H)]),
    ("regroup", [t(E // 2, 2 * C, H)], {"parts": 2, "by_expert": False}, [t(E, C, H)]),
    ("combine", [t(E, C, H), f32(S, B, K), SLOTS], {}, [X]),
    ("combine_backward", [X, t(E, C, H), f32(S, B, K), SLOTS], {}, [t(E, C, H), f32(S, B, K)]),
    ("slot_masks", [f32(S, B, K), SLOTS], MASKED, [t(S, B, E, C), f32(S, B, E, C)]),
    ("slot_masks_backward", [f32(S, B, E, C), SLOTS], {}, [f32(S, B, K)]),
    ("einsum_dispatch", [X, t(S, B, E, C)], {}, [t(E, C, H)]),
    ("einsum_dispatch_backward", [t(E, C, H), t(S, B, E, C)], {}, [X]),
    ("einsum_combine", [t(E, C, H), f32(S, B, E, C)], {}, [X]),
    ("einsum_combine_backward", [X, t(E, C, H), f32(S, B, E, C)], {}, [t(E, C, H), f32(S, B, E, C)]),
    ("grouped_matmul", [t(E, C, H), t(E, H, 2, F)], {}, [t(E, C, 2, F)]),
    ("grouped_matmul_input_gradient", [t(E, C, 2, F), t(E, H, 2, F)], {}, [t(E, C, H)]),
    ("grouped_matmul_weight_gradient", [t(E, C, H), t(E, C, 2, F), f32(E, H, 2, F)], {}, [f32(E, H, 2, F)]),
    ("grouped_matmul_weight_gradient", [t(E, C, H), t(E, C, 2, F)], {}, [t(E, H, 2, F)]),
    ("route_exact", [SCORED], FORCED, [f32(S, B, K), SLOTS, SLOTS, TensorSpec((E,), "int64")]),
    ("choose_exact", [SCORED], FORCED, [f32(S, B, K), SLOTS, TensorSpec((E,), "int64")]),
    ("assign_copies", [SLOTS, COUNTS], {"parts": 2, "width": 3}, [SLOTS, TensorSpec((6,), "int64")]),
    ("assign_nodes", [SLOTS], NODES, [SLOTS, TensorSpec((1, 17, K), "int32"), TensorSpec((2,), "int64")]),
    ("hand_on", [SLOTS, COUNTS], {"num_experts": 2, "rows": 3}, [SLOTS, TensorSpec((2,), "int64")]),
    ("sort_rows", [t(1, C, H), COUNTS], {"parts": 2, "by_expert": True}, [t(1, C, H)]),
    ("part_rows", [t(1, C, H), COUNTS], ROWS | {"parts": 2}, [t(1, 7, H), t(1, 3, H)]),
    ("join_rows", [COUNTS, t(1, 7, H), t(1, 3, H)], ROWS | {"parts": 2}, [t(1, C, H)]),
    ("ragged_matmul", [t(1, C, H), t(E, H, 2, F), COUNTS], ROWS, [t(1, C, 2, F)]),
    ("ragged_matmul_input_gradient", [t(1, C, 2, F), t(E, H, 2, F), COUNTS], ROWS, [t(1, C, H)]),
    ("ragged_matmul_weight_gradient", [t(1, C, H), t(1, C, 2, F), COUNTS, f32(E, H, 2, F)], ROWS, [f32(E, H, 2, F)]),
    ("ragged_matmul_weight_gradient", [t(1, C, H), t(1, C, 2, F), COUNTS], ROWS, [t(E, H, 2, F)]),
    ("split_qkv", [t(S, B, G, N // G + 2, D)], {}, [Q, KV, KV]),
    ("merge_qkv", [Q, KV, KV], {}, [t(S, B, G, N // G + 2, D)]),
    ("rotary", [Q], {"base": 1e4}, [Q]),
    ("rotary_backward", [Q], {"base": 1e4}, [Q]),
    ("attention_scores", [Q, KV], {}, [SCORES]),
    ("attention_scores_backward", [SCORES, Q, KV], {}, [Q, KV]),
    ("causal_softmax", [SCORES], {}, [SCORES]),
    ("causal_softmax_backward", [SCORES, SCORES], {}, [SCORES]),
    ("attention_context", [SCORES, KV], {}, [Q]),
    ("attention_context_backward", [Q, SCORES, KV], {}, [SCORES, KV]),
    ("flash_attention", [Q, KV, KV], {}, [Q, f32(B, N, S)]),
    ("decode_attention", [t(3, 1, N, D), *CACHES], {"spans": SPANS}, [t(3, 1, N, 2)]),
    ("cached_attention", [t(3, 1, N, D), *CACHES], {"spans": SPANS}, [t(3, 1, N, 2)]),
    ("decode_attention", [t(3, 1, N, D), CACHES[0]], {"spans": SPANS, "value_size": 3}, [t(3, 1, N, 3)]),
    ("append_latents", [t(3, 1, 130), t(3, 1, 1, 4)], {"places": ((5, 2), (1, 1)), "rows": S}, [*SCALED]),
    ("append_latents", [t(3, 1, 130), t(3, 1, 1, 4), *SCALED], {"places": ((0, 3),), "rows": S}, [*SCALED]),
    ("decode_latents", [t(3, 1, N, 134), *SCALED], {"spans": SPANS}, [t(3, 1, N, 130)]),
    ("take_rows", [KV], {"rows": (5, 2)}, [t(2, B, G, D)]),
    ("flash_attention_backward", [Q, Q, KV, KV, Q, f32(B, N, S)], {}, [Q, KV, KV]),
    ("rotary", [Q], {"base": 1e4, "width": 2}, [Q]),
    ("flash_attention", [Q, KV, t(S, B, G, 3)], {}, [t(S, B, N, 3), f32(B, N, S)]),
    (
        "flash_attention_backward",
        [t(S, B, N, 3), Q, KV, t(S, B, G, 3), t(S, B, N, 3), f32(B, N, S)],
        {},
        [Q, KV, t(S, B, G, 3)],
    ),
    ("split_latent", [t(S, B, 9)], {"kv_rank": 5}, [t(S, B, 5), t(S, B, 1, 4)]),
    ("merge_latent", [t(S, B, 5), t(S, B, 1, 4)], {}, [t(S, B, 9)]),
    ("latent_heads", [t(S, B, N, 7), t(S, B, 1, 2)], {"head_size": 4}, [t(S, B, N, 6), t(S, B, N, 3)]),
    ("latent_heads_backward", [t(S, B, N, 6), t(S, B, N, 3)], {"head_size": 4}, [t(S, B, N, 7), t(S, B, 1, 2)]),
    ("gelu", [X], {}, [X]),
    ("gelu_backward", [X, X], {}, [X]),
    ("swiglu", [t(S, B, 2, F)], {}, [t(S, B, F)]),
    ("swiglu_backward", [t(S, B, F), t(S, B, 2, F)], {}, [t(S, B, 2, F)]),
    ("geglu", [t(S, B, 2, F)], {}, [t(S, B, F)]),
    ("geglu_backward", [t(S, B, F), t(S, B, 2, F)], {}, [t(S, B, 2, F)]),
    ("soft_cap", [X], {"cap": 30.0}, [X]),
    ("soft_cap_backward", [X, X], {"cap": 30.0}, [X]),
    ("scaled", [X], {"factor": 2.0}, [X]),
    ("gate_tokens", [X, f32(S, B, 1)], {}, [X]),
    ("gate_tokens_backward", [X, X, f32(S, B, 1)], {}, [X, f32(S, B, 1)]),
    ("flash_attention", [Q, KV, KV], {"window": 3}, [Q, f32(B, N, S)]),
    ("attention_scores", [Q, KV], {"window": 3}, [SCORES]),
    ("add", [X, X], {}, [X]),
    ("slice", [X], {"dim": 0, "parts": 4}, [t(S // 4, B, H)]),
    ("append", [t(3, B, G, D)], {"places": ((0, 3),), "rows": S}, [KV]),
    ("append", [t(3, B, G, D), KV], {"places": ((5, 2), (1, 1)), "rows": S}, [KV]),
    ("rows", [KV], {"start": 5, "count": 3}, [t(3, B, G, D)]),
    ("flash_attention", [t(3, B, N, D), KV, KV], {"causal": False}, [t(3, B, N, D), f32(B, N, 3)]),
    ("flash_attention", [t(2, B, N, D), KV, KV], {"dealt_over": "cp"}, [t(2, B, N, D), f32(B, N, 2)]),
    (
        "flash_attention_backward",
        [t(2, B, N, D)] * 2 + [KV, KV, t(2, B, N, D), f32(B, N, 2), KV, KV],
        {"dealt_over": "cp"},
        [t(2, B, N, D), KV, KV],
    ),
    ("flash_attention", [Q, KV, KV], RING, [Q, f32(B, N, S)]),
    ("flash_attention_backward", [Q, Q, KV, KV, Q, f32(B, N, S)], RING, [Q, KV, KV]),
    ("merge_attention", [Q, f32(B, N, S), Q, f32(B, N, S)], {}, [Q, f32(B, N, S)]),
    ("take_chunks", [KV], {"order": (1, 0)}, [KV]),
    ("ring_scores", [t(3, B, N, D), KV], BLOCKS, [t(B, N, 3, 3 * S)]),
    ("ring_scores", [t(3, B, N, D), KV, t(B, N, 3, 3 * S)], BLOCKS, [t(B, N, 3, 3 * S)]),
    ("ring_context", [t(B, N, 3, 3 * S), KV], BLOCKS, [t(3, B, N, D)]),
    ("ring_context", [t(B, N, 3, 3 * S), KV, t(3, B, N, D)], BLOCKS, [t(3, B, N, D)]),
    ("transposed_context", [t(B, N, 3, S), t(3, B, N, D)], {"groups": G, "factor": 1.0}, [KV]),
    ("causal_softmax", [t(B, N, 3, S)], {"cut_over": ("cp",)}, [t(B, N, 3, S)]),
    ("causal_softmax", [SCORES], {"causal": False}, [SCORES]),
    ("attention_scores", [t(3, B, N, D), KV], {"context": 2}, [t(B, N, 3, 5)]),
    ("attention_scores_backward", [t(B, N, 3, 5), t(3, B, N, D), KV, KV], {"context": 2}, [t(3, B, N, D), KV]),
    ("attention_context", [t(B, N, 3, 5), KV], {"context": 2}, [t(3, B, N, D)]),
    ("attention_context_backward", [t(3, B, N, D), t(B, N, 3, S), KV], {"context": 5}, [t(B, N, 3, S), KV]),
    ("flash_attention", [t(3, B, N, D), KV, KV], {"context": 2}, [t(3, B, N, D), f32(B, N, 3)]),
    ("logits_max", [LOGITS], {}, [STAT]),
    ("exp_logits", [LOGITS, STAT, IDS], {}, [EXP, STAT, STAT]),
    ("cross_entropy", [STAT, STAT, f32(1)], {"scale": 1.0}, [f32(1)]),
    ("cross_entropy_backward", [EXP, STAT, IDS], {"scale": 1.0, "dtype": "float16"}, [LOGITS]),
    ("zero", [f32(H), f32(H, F)], {}, [f32(H), f32(H, F)]),
    ("scale", [f32(H), f32(H, F)], {"factor": 0.5}, [f32(H), f32(H, F)]),
    ("squared_norm", [t(H), t(H, F)], {}, [f32(1)]),
    ("zeros", [], {"shapes": ((H,), (H, F)), "dtype": "float32"}, [f32(H), f32(H, F)]),
    ("copy", [f32(H, F), f32(H, F)], {}, [f32(H, F)]),
    ("adam", [f32(H)] * 4, {}, [f32(H)] * 3),
    ("adam", [*[f32(H)] * 4, t(H)], {}, [*[f32(H)] * 3, t(H)]),
    ("adam_piece", [*[f32(2)] * 3, f32(3), f32(4), t(3), t(4)], PIECE, [*[f32(2)] * 3, t(3), t(4)]),
    (
        "adam_piece",
        [*[f32(2)] * 2, f32(2), f32(3), f32(4)],
        PIECE | {"num_gradients": 1},
        [f32(2), f32(2), f32(3), f32(4)],
    ),
    ("sgd_piece", [f32(3), f32(4), f32(3), f32(4)], PIECE, [f32(3), f32(4)]),
    ("sgd", [f32(H)] * 2, {}, [f32(H)]),
    ("sgd", [f32(H), f32(H), t(H)], {}, [f32(H), t(H)]),
    ("delay", [X], {"duration_s": 2.0}, []),
]


def work_of(name: str, inputs: Sequence[TensorSpec], attributes: Mapping[str, Any] | None = None) -> Work:
    """Return a kernel's work on its own inferred outputs."""
    kernel = KERNELS[name]
    return kernel.work(inputs, kernel.outputs(inputs, attributes or {}), attributes or {})


def test_kernels_are_found_by_their_names() -> None:
    """The registry holds each kernel under the kernel's own name."""
    assert all(KERNELS[name].name == name for name in KERNELS)


@pytest.mark.parametrize(("name", "inputs", "attributes", "expected"), CASES, ids=lambda value: str(value)[:24])
def test_outputs_follow_from_inputs(
    name: str, inputs: Sequence[TensorSpec], attributes: Mapping[str, Any], expected: Sequence[TensorSpec]
) -> None:
    """Each kernel writes tensors of the stated shapes and dtypes, and its work is sound."""
    kernel = KERNELS[name]
    outputs = kernel.outputs(inputs, attributes)
    assert outputs == tuple(expected)
    work = kernel.work(inputs, outputs, attributes)
    assert work.bytes_written <= sum(tensor.num_bytes for tensor in outputs)
    assert (work.flop > 0 or name.startswith("einsum_")) == (kernel.family in SHAPED) == (work.gemm is not None)
    assert work.executed_flop >= 0


@pytest.mark.parametrize("name", sorted(name for name in KERNELS if KERNELS[name].num_inputs[1] < float("inf")))
def test_wrong_number_of_inputs_is_refused(name: str) -> None:
    """A kernel that takes a bounded number of inputs names itself when it gets more."""
    with pytest.raises(KernelError, match=f"{name} takes"):
        KERNELS[name].outputs([X] * (int(KERNELS[name].num_inputs[1]) + 1), {})


@pytest.mark.parametrize(
    ("name", "inputs", "attributes"),
    [
        ("matmul", [X, t(F, H)], {}),
        ("matmul", [X, t(H, F)], {"contract": 2}),
        ("matmul", [X, t(H, F), t(H)], {}),
        ("matmul_weight_gradient", [t(S, B, H), t(S + 1, B, F), f32(H, F)], {}),
        ("matmul_part", [X, t(H // 3, F)], {"part": (0, 2)}),
        ("matmul_part", [X, t(H // 3, F)], {"part": (3, 3)}),
        ("matmul_part", [X, t(H // 3, F), t(S, B, F + 1)], {"part": (0, 3)}),
        ("matmul_part", [X, t(H // 3, F)], {}),
        ("matmul_part_weight_gradient", [X, t(S, B, F), f32(H, F)], {"part": (0, 3)}),
        ("matmul_piece", [t(2, B, H), t(H, F), t(S, B, F)], {"pieces": 2, "fills": True}),
        ("matmul_piece", [t(2, B, H), t(H, F)], {}),
        ("matmul_rows", [X, t(H, F)], {"pieces": 3}),
        ("matmul_pieces_weight_gradient", [t(4, B, H), t(S, B, F)], {"pieces": 2, "in_pieces": "x"}),
        ("attention_scores", [Q, t(S, B, 4, D)], {}),
        ("route", [SCORED], {"top_k": E + 1}),
        ("dispatch", [t(S, B + 1, H), SLOTS], {"num_experts": E, "capacity": C}),
        ("regroup", [t(E, C, H)], {"parts": 3, "by_expert": True}),
        ("combine", [t(E, C, H), f32(S, B, K + 1), SLOTS], {}),
        ("einsum_dispatch", [X, t(S + 1, B, E, C)], {}),
        ("grouped_matmul", [t(E, C, H), t(E + 1, H, F)], {}),
        ("grouped_matmul_weight_gradient", [t(E, C, H), t(E, C + 1, F)], {}),
        ("route_k_top_1", [SCORED], {"top_k": 3}),
        ("route_group_limited", [SCORED], {"top_k": 2, "num_groups": 3}),
        ("dispatch_slots", [SLOTS, SLOTS], PLACES),
        ("own_slots", [TensorSpec((2, 3, K), "int32")], {"parts": 2}),
        ("route_expert_choice", [SCORED], {"capacity": S * B + 1}),
        ("route_base", [SCORED], {"top_k": 1, "capacity": 1}),
        ("route_exact", [SCORED], FORCED | {"forced": (32, 0, 0)}),
        ("route_exact", [SCORED], FORCED | {"forced": (16, 0, 9, 6)}),
        ("assign_nodes", [SLOTS], NODES | {"rows": 15}),
        ("sort_rows", [t(1, C, H), COUNTS], {"parts": 3, "by_expert": True}),
        ("ragged_matmul", [t(1, C, H), t(E, H, F), COUNTS], {"rows": (7, 0, 2, 0)}),
        ("ragged_matmul", [t(1, C, H), t(E + 1, H, F), COUNTS], ROWS),
        ("swiglu", [X], {}),
        ("gate_tokens", [X, f32(S, B)], {}),
        ("gate_tokens_backward", [t(S, B, F), X, f32(S, B, 1)], {}),
        ("split_qkv", [t(S, B, G, 2, D)], {}),
        ("slice", [X], {"dim": 0, "parts": 3}),
        ("append", [t(3, B, G, D)], {"places": ((6, 3),), "rows": S}),
        ("append", [t(3, B, G, D)], {"places": ((0, 2),), "rows": S}),
        ("take_rows", [KV], {"rows": (S,)}),
        ("decode_attention", [t(3, 1, N, D), *CACHES], {"spans": ((0, 2, 2), (4, 5, 1))}),
        ("decode_attention", [t(3, 1, N, D), *CACHES], {"spans": ((0, 2, 2),)}),
        ("cached_attention", [t(3, 1, N, D), *CACHES], {"spans": ((0, 2, 3),)}),
        ("append", [t(3, B, G, D), t(S + 1, B, G, D)], {"places": ((0, 3),), "rows": S}),
        ("rows", [KV], {"start": 6, "count": 3}),
        ("merge_attention", [t(3, B, N, D), f32(B, N, 3), Q, f32(B, N, S)], {}),
        ("merge_attention", [Q, f32(B, N, 4), Q, f32(B, N, S)], {}),
        ("flash_attention", [t(3, B, N, D), KV, KV], {"dealt_over": "cp"}),
        ("flash_attention", [t(6, B, N, D), KV, KV], {"dealt_over": "cp"}),
        ("flash_attention_backward", [t(2, B, N, D)] * 2 + [KV, KV, t(2, B, N, D), f32(B, N, 2)], {"dealt_over": "cp"}),
        ("flash_attention", [t(4, B, N, D), KV, KV], RING),
        ("flash_attention", [t(5, B, N, D), t(5, B, G, D), t(5, B, G, D)], RING),
        ("take_chunks", [KV], {"order": (1, 1)}),
        ("ring_scores", [t(3, B, N, D + 1), KV], BLOCKS),
        ("ring_scores", [t(3, B, N, D), KV, t(B, N, 3, 2 * S)], BLOCKS),
        ("ring_context", [t(B, N, 3, 2 * S), KV], BLOCKS),
        ("ring_context", [t(B, N, 3, 3 * S), KV, t(3, B, G, D)], BLOCKS),
        ("transposed_context", [t(B, N, 3, S), t(3, B, N, D)], {"groups": 4, "factor": 1.0}),
        ("take_chunks", [KV], {"order": (2, 0, 1, 3, 4)}),
        ("attention_scores", [t(3, B, N, D), KV], {"context": 6}),
        ("attention_scores_backward", [t(B, N, 3, 5), t(3, B, N, D), KV], {"context": 2}),
        ("attention_context", [t(B, N, 3, 6), KV], {"context": 2}),
        ("flash_attention_backward", [t(3, B, N, D)] * 2 + [KV, KV, t(3, B, N, D), f32(B, N, 3), KV], {"context": 2}),
        ("slice", [X], {}),
        ("tokens", [], {}),
        ("add", [X, Q], {}),
        ("layer_norm", [X, t(F), t(F)], {}),
        ("rotary", [t(S, B, N, 3)], {}),
        ("rotary", [Q], {"width": 1}),
        ("rotary", [Q], {"width": D + 2}),
        ("flash_attention", [Q, KV, t(S, B, 2, D)], {}),
        ("flash_attention_backward", [Q, Q, KV, t(S, B, G, 3), Q, f32(B, N, S)], {}),
        ("split_latent", [t(S, B, 9)], {"kv_rank": 9}),
        ("split_latent", [t(S, B, 9)], {}),
        ("merge_latent", [t(S, B, 5), t(S, B, 2, 4)], {}),
        ("latent_heads", [t(S, B, N, 7), t(S, B, N, 2)], {"head_size": 4}),
        ("latent_heads_backward", [t(S, B, N, 4), t(S, B, N, 3)], {"head_size": 4}),
        ("add_positions", [X, t(S - 1, H)], {}),
        ("copy", [f32(3), t(3)], {}),
        ("adam_piece", [*[f32(3)] * 3, f32(3), f32(4), t(3), t(4)], PIECE),
        ("adam_piece", [*[f32(2)] * 3, f32(3), f32(3), t(3), t(4)], PIECE),
        ("adam_piece", [*[f32(2)] * 3, f32(3), f32(4), t(3), t(4)], {"size": 2}),
    ],
)
def test_misfit_is_refused_by_name(name: str, inputs: Sequence[TensorSpec], attributes: Mapping[str, Any]) -> None:
    """Shapes or attributes that do not fit raise an error that names the kernel."""
    with pytest.raises(KernelError, match=f"^{name}"):
        KERNELS[name].outputs(inputs, attributes)


def test_statistics_are_float64_in_float64() -> None:
    """Norm and softmax statistics keep double precision when the tensors have it."""
    x = TensorSpec((S, B, H), "float64")
    assert KERNELS["layer_norm"].outputs([x, t(H), t(H)], {})[1].dtype == "float64"
    assert KERNELS["exp_logits"].outputs([x, STAT, IDS], {})[0].dtype == "float64"
    assert KERNELS["flash_attention"].outputs([TensorSpec((S, B, N, D), "float64")] * 3, {})[1].dtype == "float64"


small = st.integers(1, 64)


@given(count=st.integers(2, 8), rows=st.integers(1, 4), n=small, k=small)
def test_products_of_all_pieces_cost_what_the_whole_does(count: int, rows: int, n: int, k: int) -> None:
    """As many FLOP; of bytes each piece reads the weight anew."""
    piece, whole, w, y = t(rows, 1, k), t(rows * count, 1, k), t(k, n), t(rows * count, 1, n)
    product = work_of("matmul", [whole, w])
    filling = {"pieces": count, "fills": True}
    pieces = {
        "matmul_piece": work_of("matmul_piece", [piece, w, y], filling),
        "matmul_rows": work_of("matmul_rows", [whole, w], {"pieces": count}),
    }
    for work in pieces.values():
        assert count * work.flop == product.flop
        assert count * work.num_bytes == product.num_bytes + (count - 1) * w.num_bytes
    assert work_of("matmul_weight_gradient", [whole, y]) == work_of(
        "matmul_pieces_weight_gradient", [*[piece] * count, y], {"pieces": count, "in_pieces": "x"}
    )


@given(m=small, n=small, k=small)
def test_three_products_of_a_linear_layer_cost_the_same(m: int, n: int, k: int) -> None:
    """Forward, input gradient and weight gradient are 2MKN each, over the same three sizes."""
    x, w, dy = t(m, 1, k), t(k, n), t(m, 1, n)
    works = [
        work_of("matmul", [x, w]),
        work_of("matmul_input_gradient", [dy, w]),
        work_of("matmul_weight_gradient", [x, dy, f32(k, n)]),
    ]
    assert [work.flop for work in works] == [2.0 * m * n * k] * 3
    assert [work.gemm for work in works] == [GemmShape(m, n, k), GemmShape(m, k, n), GemmShape(k, n, m)]
    assert works[0].num_bytes == 2 * (m * k + k * n + m * n)
    assert works[2].num_bytes == 2 * (m * k + m * n) + 2 * 4 * k * n


@given(s=small, b=small, g=small, r=st.integers(1, 4), d=small)
def test_attention_counts_the_full_square(s: int, b: int, g: int, r: int, d: int) -> None:
    """Separate and fused attention count 4bns²d forward and twice that backward; the fused one executes less."""
    q, kv, scores, n = t(s, b, g * r, d), t(s, b, g, d), t(b, g * r, s, s), g * r
    square = 4.0 * b * n * s * s * d
    forward = work_of("attention_scores", [q, kv]).flop + work_of("attention_context", [scores, kv]).flop
    backward = (
        work_of("attention_scores_backward", [scores, q, kv]).flop
        + work_of("attention_context_backward", [q, scores, kv]).flop
    )
    fused = work_of("flash_attention", [q, kv, kv])
    fused_backward = work_of("flash_attention_backward", [q, q, kv, kv, q, f32(b, n, s)])
    assert (forward, backward) == (square, 2 * square)
    assert (fused.flop, fused_backward.flop) == (square, 2 * square)
    assert (fused.executed_flop, fused_backward.executed_flop) == (square / 2, 2.5 * square / 2)


@given(s=small, b=small, n=small, d=small, e=small)
def test_attention_of_unequal_widths_counts_every_product_at_its_own(s: int, b: int, n: int, d: int, e: int) -> None:
    """Of queries and keys d wide and values e: forward d + e, backward 2d + 2e, with the scores again 3d + 2e."""
    q, v, rows = t(s, b, n, d), t(s, b, n, e), 2.0 * b * n * s * s
    scores = t(b, n, s, s)
    forward, backward = (
        work_of("flash_attention", [q, q, v]), work_of("flash_attention_backward", [v, q, q, v, v, f32(b, n, s)]),
    )  # fmt: skip
    assert (forward.flop, backward.flop) == (rows * (d + e), 2 * rows * (d + e))
    assert forward.executed_flop == pytest.approx(rows / 2 * (d + e))
    assert backward.executed_flop == pytest.approx(rows / 2 * (3 * d + 2 * e))
    assert forward.num_bytes == 2 * s * b * n * (2 * d + 2 * e) + 4 * b * n * s
    assert backward.num_bytes == 2 * s * b * n * (4 * d + 4 * e) + 4 * b * n * s
    separate = work_of("attention_scores", [q, q]).flop + work_of("attention_context", [scores, v]).flop
    assert separate == forward.flop
    assert forward.gemm is not None
    assert abs(forward.gemm.k - (d + e) / 2) <= 0.5


def test_gpt_layer_has_the_published_flop() -> None:
    """The products of one layer add up to 24bsh²(1 + s/6h) (Narayanan et al. 2021, appendix)."""
    s, b, h, n = 2048, 4, 6144, 64
    d = h // n
    x, q = t(s, b, h), t(s, b, n, d)
    scores = t(b, n, s, s)
    total = sum(
        work_of(name, inputs, attributes).flop
        for name, inputs, attributes in [
            ("matmul", [x, t(h, n, 3, d)], {}),
            ("attention_scores", [q, q], {}),
            ("attention_context", [scores, q], {}),
            ("matmul", [q, t(n, d, h)], {"contract": 2}),
            ("matmul", [x, t(h, 4 * h)], {}),
            ("matmul", [t(s, b, 4 * h), t(4 * h, h)], {}),
        ]
    )
    assert total == pytest.approx(24 * b * s * h**2 * (1 + s / (6 * h)), rel=1e-12)


def test_embedding_reads_rows_not_the_table() -> None:
    """A larger vocabulary does not make a look-up dearer."""
    small_table, large_table = work_of("embedding", [IDS, t(V, H)]), work_of("embedding", [IDS, t(100 * V, H)])
    assert small_table == large_table
    backward = [work_of("embedding_backward", [IDS, X, f32(rows, H)]) for rows in (V, 100 * V)]
    assert backward[0] == backward[1]
    assert backward[0].bytes_written == S * B * H * 4


def test_an_embedding_gradient_has_no_more_rows_to_add_to_than_the_table() -> None:
    """More tokens than the table has rows touch some rows again, and each row moves once."""
    few = S * B // 2
    work = work_of("embedding_backward", [IDS, X, f32(few, H)])
    assert work.bytes_written == few * H * 4
    assert work.bytes_read == S * B * 8 + S * B * H * 2 + few * H * 4


def test_adam_moves_the_known_bytes_per_parameter() -> None:
    """Mixed-precision Adam reads 16 and writes 14 bytes per parameter."""
    work = work_of("adam", [*[f32(1000)] * 4, t(1000)])
    assert (work.bytes_read, work.bytes_written) == (16_000, 14_000)


def test_an_optimizer_of_a_piece_moves_that_piece_alone() -> None:
    """Of parameters shared out among ranks, a rank moves the bytes of its own, whatever else the buffers hold."""
    state = [f32(250)] * 3
    for gradients in ([f32(600), f32(400)], [f32(250)]):
        attributes = {"size": 250, "num_gradients": len(gradients), "num_parameters": 2}
        of_piece = work_of("adam_piece", [*state, *gradients, t(600), t(400)], attributes)
        assert of_piece == work_of("adam", [*[f32(250)] * 4, t(250)])
    whole = {"size": 1000, "num_gradients": 1, "num_parameters": 1}
    for kernel, one in (("adam", 2), ("sgd", 0)):
        piece = work_of(f"{kernel}_piece", [f32(1000)] * (one + 2), whole)
        assert piece == work_of(kernel, [f32(1000)] * (one + 2))


def test_sgd_moves_the_known_bytes_per_parameter() -> None:
    """Mixed-precision SGD reads weight and gradient, 8 bytes per parameter, and writes 6: both copies of the weight."""
    work = work_of("sgd", [*[f32(1000)] * 2, t(1000)])
    assert (work.bytes_read, work.bytes_written) == (8_000, 6_000)


def test_delay_lasts_what_it_says() -> None:
    """A delay has its duration and nothing else."""
    assert work_of("delay", [], {"duration_s": 1.5}) == Work(0.0, 0.0, 0, 0, duration_s=1.5)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_parts_of_a_product_do_its_work(count: int) -> None:
    """Together the parts have the FLOP of the whole, read the activation once, and write the sum once per part."""
    x, w, y, dw = t(S, B, H), t(H // count, F), t(S, B, F), f32(H // count, F)
    for kernel, whole, inputs, again in (
        ("matmul", [x, t(H, F)], [x, w], y.num_bytes * (count - 1)),
        ("matmul_input_gradient", [y, t(H, F)], [y, w], y.num_bytes * (count - 1)),
        ("matmul_weight_gradient", [x, y, f32(H, F)], [x, y, dw], y.num_bytes * (count - 1)),
    ):
        part = work_of(kernel.replace("matmul", "matmul_part"), inputs, {"part": (0, count)})
        together, single = work_of(kernel, whole), count * part.flop
        assert single == together.flop
        assert count * part.num_bytes == together.num_bytes + again
