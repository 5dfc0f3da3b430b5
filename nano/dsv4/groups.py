"""Which tokens of a batch belong together: documents, window blocks and compression groups.

Documents are packed into rows; every document counts its positions from 0, so its groups of r
tokens begin at its first token wherever that lies in the row.  Shapes: B rows, T tokens, G = T // r
group slots per row (a row has at most that many complete groups).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Groups:
    """The complete groups of one ratio; slots are in the order of the tokens."""

    tokens: Tensor  # [B, G, r] indices into the row, 0 in unused slots
    position: Tensor  # [B, G] position of the first token in its document
    follows: Tensor  # [B, G] bool: the slot before holds the group before, of the same document
    visible: Tensor  # [B, T, G] bool: the token may look at the row of this group

    @property
    def most_visible(self) -> int:
        return int(self.visible.sum(dim=-1).max()) if self.visible.numel() else 0


@dataclass
class Layout:
    """Positions and masks of a batch; the groups of each ratio are found once."""

    docs: Tensor  # [B, T] document numbers
    position: Tensor  # [B, T] token index in its document
    window: int
    near: Tensor  # [B, blocks, window, 2 * window] bool: visible keys of a block and the one before
    _groups: dict[int, Groups] = field(default_factory=dict)

    @classmethod
    def of(cls, docs: Tensor, window: int) -> Layout:
        position = positions(docs)
        return cls(docs, position, window, near_mask(docs, window))

    def groups(self, ratio: int) -> Groups:
        if ratio not in self._groups:
            self._groups[ratio] = find_groups(self.docs, self.position, ratio)
        return self._groups[ratio]


def positions(docs: Tensor) -> Tensor:
    """[B, T] index of each token in its document; equal neighbours in `docs` are one document."""
    index = torch.arange(docs.shape[1], device=docs.device).expand_as(docs)
    starts = F.pad(docs[:, 1:] != docs[:, :-1], (1, 0), value=True)
    return index - torch.where(starts, index, torch.zeros_like(index)).cummax(dim=1).values


def in_blocks(x: Tensor, window: int) -> Tensor:
    """[B, T, ...] -> [B, blocks, window, ...], zeros behind the last token."""
    short = -x.shape[1] % window
    padded = F.pad(x, (0, 0) * (x.ndim - 2) + (0, short))
    return padded.unflatten(1, (-1, window))


def with_block_before(blocks: Tensor) -> Tensor:
    """[B, n, window, ...] -> [B, n, 2 * window, ...]: each block behind the one before it."""
    before = torch.cat([torch.zeros_like(blocks[:, :1]), blocks[:, :-1]], dim=1)
    return torch.cat([before, blocks], dim=2)


def near_mask(docs: Tensor, window: int) -> Tensor:
    """Keys at distance 0..window-1 of the same document."""
    numbers = in_blocks(docs + 1 - docs.min(), window)  # 0 marks what lies outside the row
    keys = with_block_before(numbers)
    distance = torch.arange(window).unsqueeze(1) + window - torch.arange(2 * window).unsqueeze(0)
    reach = (distance >= 0) & (distance < window)
    return (numbers.unsqueeze(3) == keys.unsqueeze(2)) & reach.to(docs.device)


def find_groups(docs: Tensor, position: Tensor, ratio: int) -> Groups:
    t = docs.shape[1]
    slots = t // ratio
    # A complete group closes at a token whose position is r-1 mod r; closing tokens come first.
    closes = (position + 1) % ratio == 0
    last = torch.argsort((~closes).to(torch.int8), dim=1, stable=True)[:, :slots]
    used = closes.gather(1, last)
    first = torch.where(used, last - (ratio - 1), torch.zeros_like(last))
    tokens = first.unsqueeze(-1) + torch.arange(ratio, device=docs.device)
    tokens = torch.where(used.unsqueeze(-1), tokens, torch.zeros_like(tokens))
    same = docs.gather(1, last).unsqueeze(1) == docs.unsqueeze(2)
    index = torch.arange(t, device=docs.device).view(1, t, 1)
    visible = used.unsqueeze(1) & same & (last.unsqueeze(1) <= index)
    start = torch.where(used, position.gather(1, first), torch.zeros_like(first))
    return Groups(tokens, start, used & (start >= ratio), visible)
