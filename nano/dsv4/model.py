"""The trainable DeepSeek-V4 model.

Names of parameters are the tensor names of the `.bin` format, except that the routed experts of a
layer are stacked: `layers.{l}.ffn.experts.w1|w2|w3`, each [E, rows, columns].

Shapes in comments: B rows, T tokens, S residual streams, d hidden, V vocabulary.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from nano.dsv4.attention import Attention, Observer, Pass
from nano.dsv4.config import Dsv4Config
from nano.dsv4.groups import Layout
from nano.dsv4.mixing import Mix, head_input, mixer, next_streams, sublayer_input
from nano.dsv4.moe import Moe
from nano.model import IGNORE, ForwardOptions, Weight, rms, wide

# Of the indexers' divergence beside the nats of the text.  It reaches no other parameter, so it
# only sets the indexers' share of the clipped gradient.
INDEX_LOSS_WEIGHT = 0.1


class Layer(nn.Module):
    def __init__(self, config: Dsv4Config, index: int) -> None:
        super().__init__()
        self.config, self.index = config, index
        self.attn_norm, self.ffn_norm = Weight(config.hidden), Weight(config.hidden)
        s = config.hc_mult
        for part in ("attn", "ffn"):
            rows = (2 + s) * s
            self.register_parameter(
                f"hc_{part}_fn", nn.Parameter(torch.empty(rows, s * config.hidden))
            )
            self.register_parameter(f"hc_{part}_base", nn.Parameter(torch.empty(rows)))
            self.register_parameter(f"hc_{part}_scale", nn.Parameter(torch.empty(3)))
        self.attn = Attention(config, index)
        self.ffn = Moe(config, index)

    def forward(self, x: Tensor, tokens: Tensor, run: Pass, options: ForwardOptions) -> Tensor:
        """Streams [B, T, S, d] -> streams."""
        a, mix = self._input("attn", x, self.attn_norm.weight, run)
        y = self.attn(a, run)
        run.see(self.index, "attn.y", y)
        x = self._output(x, y, mix, options)
        b, mix = self._input("ffn", x, self.ffn_norm.weight, run)
        y = self.ffn(b, tokens, run, options)
        run.see(self.index, "moe.y", y)
        x = self._output(x, y, mix, options)
        run.see(self.index, "X", x)
        return x

    def _input(self, part: str, x: Tensor, norm: Tensor, run: Pass) -> tuple[Tensor, Mix]:
        c = self.config
        with torch.autocast(x.device.type, enabled=False):
            mix = mixer(
                x, getattr(self, f"hc_{part}_fn"), getattr(self, f"hc_{part}_base"),
                getattr(self, f"hc_{part}_scale"), c.rms_norm_eps, c.hc_eps, c.hc_sinkhorn_iters,
            )
            run.see(self.index, f"{part}.comb", mix.comb)
            return rms(sublayer_input(x, mix.pre), norm, c.rms_norm_eps), mix

    def _output(self, x: Tensor, y: Tensor, mix: Mix, options: ForwardOptions) -> Tensor:
        y = F.dropout(wide(y), options.dropout, self.training)
        with torch.autocast(x.device.type, enabled=False):
            return next_streams(x, y, mix)


class Dsv4Model(nn.Module):
    """Tokens [B, T] to logits [B, T, V]."""

    def __init__(self, config: Dsv4Config) -> None:
        super().__init__()
        config.validate()
        self.config = config
        s = config.hc_mult
        self.embed = Weight(config.vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.n_layers))
        self.hc_head_fn = nn.Parameter(torch.empty(s, s * config.hidden))
        self.hc_head_base = nn.Parameter(torch.empty(s))
        self.hc_head_scale = nn.Parameter(torch.empty(1))
        self.norm = Weight(config.hidden)
        self.head = Weight(config.vocab, config.hidden)
        self.options = ForwardOptions()

    def forward(
        self, tokens: Tensor, doc: Tensor | None = None, observe: Observer | None = None
    ) -> Tensor:
        """`doc`: document numbers [B, T]; None = every row is one document."""
        return F.linear(self.hidden(tokens, self._begin(tokens, doc, observe)), self.head.weight)

    def _begin(self, tokens: Tensor, doc: Tensor | None, observe: Observer | None = None) -> Pass:
        docs = torch.zeros_like(tokens) if doc is None else doc
        return Pass(Layout.of(docs, self.config.sliding_window), observe)

    def hidden(self, tokens: Tensor, run: Pass) -> Tensor:
        """Normed output vectors [B, T, d], one product before the logits."""
        c, options = self.config, self.options
        h = F.embedding(tokens, self.embed.weight)
        x = h.unsqueeze(2).expand(*h.shape[:2], c.hc_mult, c.hidden)
        for layer in self.layers:
            if options.checkpoint_layers and self.training:
                x = torch.utils.checkpoint.checkpoint(
                    layer, x, tokens, run, options, use_reentrant=False
                )
            else:
                x = layer(x, tokens, run, options)
        return self.finish(x)

    def finish(self, x: Tensor) -> Tensor:
        """Streams [B, T, S, d] behind the last layer to normed output vectors [B, T, d]."""
        c = self.config
        with torch.autocast(x.device.type, enabled=False):
            h = head_input(x, self.hc_head_fn, self.hc_head_base, self.hc_head_scale,
                           c.rms_norm_eps, c.hc_eps)
            return rms(h, self.norm.weight, c.rms_norm_eps)

    def loss(self, tokens: Tensor, targets: Tensor, doc: Tensor | None = None) -> Tensor:
        """Sum of nats over targets that are not IGNORE.

        In training the indexers' divergence gives them their gradient; its value is not in the
        result.
        """
        run = self._begin(tokens, doc)
        run.want_index_loss = self.training
        hidden = self.hidden(tokens, run)
        with torch.autocast(tokens.device.type, enabled=False):
            logits = F.linear(wide(hidden), self.head.weight)
        nats = F.cross_entropy(
            logits.view(-1, logits.shape[-1]), targets.reshape(-1),
            ignore_index=IGNORE, reduction="sum",
        )
        if not run.index_losses:
            return nats
        extra = INDEX_LOSS_WEIGHT * torch.stack(run.index_losses).sum()
        return nats + (extra - extra.detach())

    def moe_layers(self) -> list[tuple[int, Moe]]:
        return [(layer.index, layer.ffn) for layer in self.layers]


RESIDUAL_WRITERS = ("wo_b.weight", "experts.w2", "w2.weight")


@torch.no_grad()
def initialise(model: Dsv4Model, generator: torch.Generator) -> None:
    """Fills every parameter and hash table; the same generator state gives the same model.

    Matrices N(0, 1/sqrt(fan_in)), those that write to the streams scaled by 1/sqrt(2L); embedding
    and head N(0, 0.02).  Mixers begin almost fixed: streams are read evenly, written with weight
    near 1 and kept mostly in place, with offsets random enough to part them.
    """
    depth = 1.0 / math.sqrt(2 * model.config.n_layers)
    s = model.config.hc_mult
    for name, p in model.named_parameters():
        if name in ("embed.weight", "head.weight"):
            p.normal_(0.0, 0.02, generator=generator)
        elif "hc_" in name:
            _initialise_mixer(name, p, s, generator)
        elif name.endswith("attn_sink"):
            p.zero_()
        elif "norm" in name:
            p.fill_(1.0)
        elif name.endswith("ape"):
            p.normal_(0.0, 0.02, generator=generator)
        elif name.endswith("gate.weight"):
            p.normal_(0.0, 0.3 / math.sqrt(p.shape[1]), generator=generator)
        else:
            std = 1.0 / math.sqrt(p.shape[-1])
            if name.endswith(RESIDUAL_WRITERS):
                std *= depth
            p.normal_(0.0, std, generator=generator)
    for _, moe in model.moe_layers():
        if moe.hashed:
            _fill_hash_table(moe.gate.tid2eid, model.config.n_routed_experts, generator)
        else:
            moe.gate.bias.zero_()


def _initialise_mixer(name: str, p: Tensor, s: int, generator: torch.Generator) -> None:
    if name.endswith("fn"):
        p.normal_(0.0, 1 / math.sqrt(p.shape[1]), generator=generator)
    elif name.endswith("scale"):
        p.fill_(0.1)
    else:
        p.normal_(0.0, 0.3, generator=generator)
        p[:s] -= math.log(s - 1) if s > 1 else 0.0  # sigmoid gives 1/s
        if p.numel() > s:
            p[2 * s :] += 2.0 * torch.eye(s).flatten()


def _fill_hash_table(table: Tensor, experts: int, generator: torch.Generator) -> None:
    """k distinct experts for every token id."""
    for row in table:
        row.copy_(torch.randperm(experts, generator=generator)[: table.shape[1]])
