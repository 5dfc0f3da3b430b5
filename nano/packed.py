"""A K3 model straight from a `.bin`: weights stay in the mapped file, experts stay packed.

Only the parts of the file that a forward pass touches are resident.  Routed experts are decoded a
few at a time when tokens reach them, again in the backward pass, and never kept.  All weights are
frozen; adapters (`nano.lora`) and trainable gains are put on top.

The file must not be cut while it is mapped: the operating system would end the process.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from nano import mxfp4
from nano.mkim import CODEBOOK, DType, Entry, MkimError, MkimFile
from nano.model import ForwardOptions, K3Model, LatentMoe, Weight, activation
from nano.moe import grouped_experts
from nano.tensors import EXPERT_PARTS, expert_name, k3_tensors

MOE_CHUNK = 8  # experts decoded at a time

_TORCH_TYPES = {DType.F32: torch.float32, DType.BF16: torch.bfloat16, DType.I32: torch.int32}


class MappedModel:
    """The blobs of a checked `.bin` as tensors that share the page cache."""

    def __init__(self, path: Path) -> None:
        with MkimFile(path) as model:
            self.path, self.entries, self.config = path, model.entries, model.k3()
            book = model.read(CODEBOOK) if CODEBOOK in model.entries else None
        self.codebook = None if book is None else torch.from_numpy(np.array(book))
        # Copy on write: torch wants writable memory, the file must not change.
        self._bytes = torch.from_numpy(np.memmap(path, np.uint8, mode="c"))

    def blob(self, entry: Entry) -> Tensor:
        return self._bytes[entry.offset : entry.offset + entry.size]

    def spine(self, name: str, dims: tuple[int, ...]) -> Tensor:
        """f32 or bf16 view [dims] of a tensor outside the routed experts."""
        entry = self.entries[name]
        raw, dtype = self.blob(entry), _TORCH_TYPES[entry.dtype]
        if entry.offset % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).view(dims)


class SpineWeight(nn.Module):
    """A frozen tensor of the file, with room for an adapter or a trainable copy.

    `weight` is what the model multiplies by: f32 on the compute device, plus the adapter's product.
    """

    def __init__(self, base: Tensor, device: torch.device) -> None:
        super().__init__()
        self.base, self.device = base, device
        self.adapter: nn.Module | None = None
        self.trained: nn.Parameter | None = None

    @property
    def weight(self) -> Tensor:
        if self.trained is not None:
            return self.trained
        w = self.base.to(self.device, torch.float32)
        return w if self.adapter is None else self.adapter(w)


class PackedExperts(nn.Module):
    """The routed experts of one layer as they are in the file."""

    def __init__(self, source: MappedModel, layer: int, device: torch.device) -> None:
        super().__init__()
        self.device, self.codebook = device, source.codebook
        self._pairs = torch.from_numpy(mxfp4.PAIRS)
        self._scales = torch.from_numpy(mxfp4.SCALES)
        self._packed: dict[str, list[tuple[Tensor, Entry]]] = {}
        for part in EXPERT_PARTS:
            names = (expert_name(layer, e, part) for e in range(source.config.n_experts))
            entries = [source.entries[name] for name in names]
            self._packed[part] = [(source.blob(entry), entry) for entry in entries]

    def decode(self, part: str, experts: list[int]) -> Tensor:
        """[n, rows, columns] f32 of the given experts."""
        chosen = [self._packed[part][e] for e in experts]
        first = chosen[0][1]
        if any(entry.dtype != first.dtype for _, entry in chosen):
            return torch.cat([self.decode(part, [e]) for e in experts])
        blobs = torch.stack([blob for blob, _ in chosen]).to(self.device)
        return self._values(blobs, first).view(len(experts), *first.dims)

    def _values(self, blobs: Tensor, entry: Entry) -> Tensor:
        """Decoded values of blobs [n, bytes] that are all of the type and dims of `entry`."""
        if entry.dtype == DType.F32:
            return blobs.view(torch.float32)
        if entry.dtype == DType.VQ1:
            assert self.codebook is not None
            return self._lookup(self.codebook, blobs)
        rows, cols = entry.dims
        half, groups = rows * cols // 2, rows * cols // mxfp4.GROUP
        values = self._lookup(self._pairs, blobs[:, :half]).view(-1, mxfp4.GROUP)
        codes = blobs[:, half : half + groups]
        if entry.dtype == DType.MXFP4:
            if bool((codes == mxfp4.INVALID_SCALE).any()):
                raise MkimError(f"a scale byte near {entry.name} is 255; the file is damaged")
            return values * self._lookup(self._scales.unsqueeze(1), codes)
        smax = blobs[:, half + groups :].contiguous().view(torch.float32)
        t = (codes.float() + 1.0) * (1 / 256)
        return values * (t * t * smax).view(-1, 1)

    def _lookup(self, table: Tensor, index: Tensor) -> Tensor:
        return table.to(self.device).index_select(0, index.reshape(-1).int())


class PackedMoe(LatentMoe):
    """A mixture-of-experts layer that decodes the experts its tokens chose."""

    experts: PackedExperts
    chunk: int = MOE_CHUNK

    def routed(
        self, latent: Tensor, ids: Tensor, weights: Tensor, options: ForwardOptions
    ) -> tuple[Tensor, Tensor]:
        n, k = ids.shape
        flat = ids.reshape(-1)
        order = torch.argsort(flat, stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=order.device)
        counts = torch.bincount(flat, minlength=self.config.n_experts)
        rows = latent.index_select(0, order // k)
        used = counts.nonzero().squeeze(1).tolist()
        groups = [used[i : i + self.chunk] for i in range(0, len(used), self.chunk)]
        sizes = [int(counts[group].sum()) for group in groups]
        out = [
            # Recomputed in the backward pass: decoded experts never outlive their product.
            torch.utils.checkpoint.checkpoint(
                self._some, part, group, counts[group], use_reentrant=False
            )
            for part, group in zip(rows.split(sizes), groups, strict=True)
        ]
        per_token = torch.cat(out).index_select(0, inverse).view(n, k, -1)
        return torch.einsum("nkm,nk->nm", per_token, weights.to(latent.dtype)), counts

    def _some(self, rows: Tensor, experts: list[int], counts: Tensor) -> Tensor:
        """Rows [A, m] sorted by expert through `experts`, counts[i] rows each."""
        w13 = torch.cat([self.experts.decode("w1", experts), self.experts.decode("w3", experts)], 1)
        w2 = self.experts.decode("w2", experts)
        local = torch.repeat_interleave(
            torch.arange(len(experts), device=rows.device), counts, output_size=len(rows)
        )
        ones = torch.ones(len(rows), 1, dtype=rows.dtype, device=rows.device)
        out, _ = grouped_experts(rows, local.unsqueeze(1), ones, w13.to(rows.dtype),
                                 w2.to(rows.dtype), activation(self.config))
        return out


class PackedModel(K3Model):
    """K3Model whose embedding rows are gathered in the file, wherever the rest is computed."""

    def embed(self, tokens: Tensor) -> Tensor:
        holder = self.embed_tokens
        assert isinstance(holder, SpineWeight)
        rows = holder.base.index_select(0, tokens.reshape(-1).to(holder.base.device))
        return rows.to(holder.device, torch.float32).view(*tokens.shape, -1)


def load_packed(
    path: Path, device: str | torch.device = "cpu", moe_chunk: int = MOE_CHUNK
) -> PackedModel:
    """The model of `path`, frozen.  Every layer is recomputed in the backward pass."""
    source, target = MappedModel(path), torch.device(device)
    with torch.device("meta"):
        model = PackedModel(source.config)
    for layer, _ in model.moe_layers():
        model.layers[layer].block_sparse_moe = _packed_moe(source, layer, target, moe_chunk)
    for tensor in k3_tensors(source.config):
        if not tensor.expert:
            _place(model, tensor.name, source.spine(tensor.name, tensor.dims), target)
    model.options.checkpoint_layers = True
    return model


def _packed_moe(
    source: MappedModel, layer: int, device: torch.device, chunk: int
) -> PackedMoe:
    with torch.device("meta"):
        moe = PackedMoe(source.config)
    moe.experts = PackedExperts(source, layer, device)
    moe.load = torch.zeros(source.config.n_experts, device=device)
    moe.chunk = chunk
    return moe


def _place(model: K3Model, name: str, value: Tensor, device: torch.device) -> None:
    """Puts a tensor of the file where the model has its parameter `name`."""
    parent_name, _, attribute = name.rpartition(".")
    parent = model.get_submodule(parent_name)
    if isinstance(parent, Weight):
        grand_name, _, child = parent_name.rpartition(".")
        setattr(model.get_submodule(grand_name), child, SpineWeight(value, device))
        return
    value = value.to(device, torch.float32)
    if attribute in parent._buffers:
        parent._buffers[attribute] = value
    else:
        parent._parameters[attribute] = nn.Parameter(value, requires_grad=False)


def spine_weights(model: K3Model) -> dict[str, SpineWeight]:
    """The frozen tensors by their name in the file."""
    return {f"{n}.weight": m for n, m in model.named_modules() if isinstance(m, SpineWeight)}
