"""Kimi Delta Attention: a gated delta-rule recurrence, step by step and in chunks.

Shapes: B batch, T tokens, H heads, D head size.  Per head the state S is [D, D] (key channel by
value channel) and starts at zero for every document.  One step with log-decay g <= 0 (a vector
over key channels) and write strength beta:

    S     <- diag(e^g) S                 decay
    delta  = v - S^T k                   what the state does not yet predict
    S     <- S + beta k delta^T          rank-1 write
    o      = S^T q                       read after the write
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 16  # 15 steps of log-decay -5 stay below e^85, inside f32 range
MAX_EXPONENT = 85.0


def kda_steps(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, doc: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The recurrence as written above; the oracle of `kda_chunks`.

    q, k, v, g: [B, T, H, D]; beta: [B, T, H]; doc: [B, T] document numbers or None.
    Returns outputs [B, T, H, D] and the final state [B, H, D, D].
    """
    b, t, h, d = q.shape
    s = q.new_zeros(b, h, d, d) if state is None else state
    outs = []
    for i in range(t):
        if doc is not None and i > 0:
            s = s * (doc[:, i] == doc[:, i - 1]).view(b, 1, 1, 1).to(s.dtype)
        s = s * g[:, i].exp().unsqueeze(-1)
        delta = v[:, i] - torch.einsum("bhk,bhkv->bhv", k[:, i], s)
        s = s + (beta[:, i, :, None] * k[:, i]).unsqueeze(-1) * delta.unsqueeze(-2)
        outs.append(torch.einsum("bhk,bhkv->bhv", q[:, i], s))
    return torch.stack(outs, dim=1), s


def kda_chunks(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, doc: Tensor | None = None,
    state: Tensor | None = None, lower_bound: float = -5.0,
) -> tuple[Tensor, Tensor]:
    """The same result from matrix products over chunks of CHUNK tokens (WY form).

    With G the inclusive running sum of g inside a chunk, the corrections delta of all rows solve
    one unit lower triangular system, and only one state per chunk is carried:

        N[r,i] = beta_r <k_r e^{G_r}, k_i e^{-G_i}>   (i < r)
        (I + N) [U | W] = beta [v | k e^G]
        delta = U - W S        o = (q e^G) S + tril(Q) delta
        S     = e^{G_C} S + (k e^{G_C - G})^T delta

    e^{-G} alone would overflow, so both factors are taken relative to the chunk's middle row.
    `lower_bound` is the smallest possible g; it bounds every exponent that is formed.
    """
    assert (CHUNK - 1) * -lower_bound <= MAX_EXPONENT, "log-decay bound too low for the chunk form"
    b, t, h, d = q.shape
    if doc is None:
        doc = torch.zeros(b, t, dtype=torch.int32, device=q.device)
    pad = -t % CHUNK
    n = (t + pad) // CHUNK

    def split(x: Tensor) -> Tensor:  # [B, T, H, *] -> [B, H, n, C, *], zero rows behind the end
        if pad:
            x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, pad))
        return x.view(b, n, CHUNK, h, -1).permute(0, 3, 1, 2, 4)

    if pad:  # padded rows belong to the last document, write nothing and do not decay
        doc = torch.cat([doc, doc[:, -1:].expand(b, pad)], dim=1)
    doc = doc.reshape(b, 1, n, CHUNK)
    same, reads, writes, keep = _document_masks(doc, q.dtype)
    qc, kc, vc, gc, bc = split(q), split(k), split(v), split(g), split(beta.unsqueeze(-1))
    big_g = gc.cumsum(dim=3)
    mid = big_g[:, :, :, CHUNK // 2 : CHUNK // 2 + 1]
    last = big_g[:, :, :, CHUNK - 1 :]
    rel = (big_g - mid).exp()
    e_g = big_g.exp()
    k_in = kc * rel
    k_out = (kc * (mid - big_g).exp()).transpose(-1, -2)
    nmat = (bc * (k_in @ k_out)).masked_fill(~same.tril(-1), 0.0)
    qmat = ((qc * rel) @ k_out).masked_fill(~same.tril(), 0.0)
    rhs = bc * torch.cat([vc, kc * (e_g * reads)], dim=-1)
    eye = torch.eye(CHUNK, dtype=q.dtype, device=q.device)
    solved = torch.linalg.solve_triangular(nmat + eye, rhs, upper=False, unitriangular=True)
    u, w = solved.split([d, d], dim=-1)
    k_end = (kc * ((last - big_g).exp() * writes)).transpose(-1, -2)
    decay = last.exp().transpose(-1, -2) * keep
    states, deltas, final = _scan_chunks(u, w, k_end, decay, state)
    out = (qc * (e_g * reads)) @ states + qmat @ deltas
    out = out.permute(0, 2, 3, 1, 4).reshape(b, n * CHUNK, h, d)
    return out[:, :t], final


def _document_masks(doc: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Who may see whom, from document numbers [B, 1, n, C].

    same   [B,1,n,C,C] row and column in one document
    reads  [B,1,n,C,1] 1 where the row continues the document that the previous chunk ended in
    writes [B,1,n,C,1] 1 where the row belongs to the document that the chunk ends in
    keep   [B,1,n,1,1] 1 where the incoming state survives the chunk
    """
    same = doc.unsqueeze(-1) == doc.unsqueeze(-2)
    end = doc[..., -1:]
    before = torch.cat([doc[:, :, :1, :1], end[:, :, :-1]], dim=2)
    reads = (doc == before).unsqueeze(-1).to(dtype)
    writes = (doc == end).unsqueeze(-1).to(dtype)
    keep = (end == before).unsqueeze(-1).to(dtype)
    return same, reads, writes, keep


def _scan_chunks(
    u: Tensor, w: Tensor, k_end: Tensor, decay: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Carries the state over chunks.

    u, w: [B,H,n,C,D]; k_end: [B,H,n,D,C]; decay: [B,H,n,D,1].
    Returns the state before each chunk, the corrections of each chunk, and the last state.
    `unbind` instead of indexing: indexing makes the backward pass fill a full-size gradient per
    chunk.
    """
    b, h, n, c, d = u.shape

    def per_chunk(x: Tensor) -> tuple[Tensor, ...]:
        return x.reshape(b * h, n, *x.shape[3:]).unbind(1)

    s = u.new_zeros(b * h, d, d) if state is None else state.reshape(b * h, d, d)
    states, deltas = [], []
    chunks = zip(per_chunk(u), per_chunk(w), per_chunk(k_end), per_chunk(decay), strict=True)
    for u_i, w_i, k_i, decay_i in chunks:
        states.append(s)
        delta = torch.baddbmm(u_i, w_i, s, alpha=-1)
        deltas.append(delta)
        s = torch.baddbmm(decay_i * s, k_i, delta)
    all_states = torch.stack(states, dim=1).view(b, h, n, d, d)
    all_deltas = torch.stack(deltas, dim=1).view(b, h, n, c, d)
    return all_states, all_deltas, s.view(b, h, d, d)
