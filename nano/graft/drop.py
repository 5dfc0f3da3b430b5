"""`drop`: a model without some of its routed experts.

Every layer keeps the same number of experts, not the same ones.  Rows of the router and of its
bias go with their experts; nothing else changes, and the bytes of experts that stay are copied.
In a layer whose router is a table of token ids, an entry of a dropped expert becomes the kept one
that is not yet in its row and whose router row points most in the same direction.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from nano.files import write_json
from nano.graft import codecs
from nano.graft.checkpoint import Checkpoint
from nano.graft.config import read_json
from nano.graft.errors import GraftError
from nano.graft.source import MkimSource, SafetensorsSource
from nano.graft.write import (
    INDEX,
    RECORD,
    Directory,
    Item,
    copy_side_files,
    copy_vocabulary,
    refuse_existing,
    write_safetensors,
)
from nano.mkim import MkimError
from nano.mkim_writer import MkimWriter, Spec
from nano.tensors import EXPERT_NAME

Keep = dict[int, list[int]]


def read_keep(path: Path, source: Checkpoint) -> Keep:
    """{"layer": [experts]} for every layer that has experts, checked against the model."""
    raw = read_json(path)
    raw = raw.get("keep", raw)
    c = source.cfg
    layers = [i for i in range(c.n_layers) if c.ffn_kind[i] != "dense"]
    try:
        keep = {int(k): [int(e) for e in v] for k, v in raw.items()}
    except (ValueError, TypeError, AttributeError) as err:
        raise GraftError(f"{path}: must be {{\"layer\": [experts]}}: {err}") from err
    if sorted(keep) != layers:
        raise GraftError(f"{path}: lists layers {sorted(keep)}, the model has experts in {layers}")
    for layer, experts in keep.items():
        if len(set(experts)) != len(experts) or not all(0 <= e < c.n_experts for e in experts):
            raise GraftError(f"{path}: layer {layer}: experts must be distinct, in "
                             f"0..{c.n_experts - 1}")
    sizes = {len(v) for v in keep.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise GraftError(f"{path}: every layer must keep the same number of experts, not "
                         f"{sorted(sizes)}")
    return {layer: sorted(experts) for layer, experts in keep.items()}


def drop_experts(source: Checkpoint, keep: Keep, out: Path) -> None:
    """Writes the smaller model to `out`, which must not exist."""
    refuse_existing(out)
    if source.staged:
        raise GraftError("write staged changes before dropping experts")
    count = len(next(iter(keep.values())))
    record = {"tool": "drop", "source": source.info(), "experts": count,
              "keep": {str(k): v for k, v in keep.items()}}
    try:
        if isinstance(source.source, MkimSource):
            _drop_mkim(source, source.source, keep, count, out)
            copy_vocabulary(source.path, out)
            write_json(out.with_suffix("." + RECORD), record)
        else:
            _drop_library(source, source.source, keep, count, out, record)
    except MkimError as err:
        raise GraftError(str(err)) from err


def _router_tensors(source: Checkpoint, layer: int) -> dict[str, Any]:
    """New values of the router's tensors by canonical name, as functions of the kept experts."""
    router = source.layers[layer].ffn.router
    assert router is not None
    out: dict[str, Any] = {router.weight.name: lambda kept: router.weight.read()[kept]}
    if router.bias is not None:
        bias = router.bias
        out[bias.name] = lambda kept: bias.read()[kept]
    if router.table is not None:
        table = router.table
        out[table.name] = lambda kept: remap_table(table.read(), router.weight.read(), kept)
    return out


def remap_table(table: np.ndarray, gate: np.ndarray, kept: list[int]) -> np.ndarray:
    """Table [V, k] of old ids to new ids; k shrinks with fewer experts."""
    width = min(table.shape[1], len(kept))
    rows = gate.astype(np.float64)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    cosine = rows @ rows[kept].T  # [E, kept]
    order = np.argsort(-cosine, axis=1, kind="stable")
    new = {old: i for i, old in enumerate(kept)}
    out = np.empty((len(table), width), table.dtype)
    for v, entries in enumerate(table):
        row = [new[int(e)] for e in entries if int(e) in new][:width]
        for e in entries:
            if len(row) < width and int(e) not in new:
                row.append(next(int(j) for j in order[int(e)] if j not in row))
        out[v] = row
    return out


# -- MKIM ----------------------------------------------------------------------------------------


def _drop_mkim(source: Checkpoint, files: MkimSource, keep: Keep, count: int, out: Path) -> None:
    if out.suffix != ".bin":
        raise GraftError(f"{out}: a model file must end in .bin")
    router = {name: (layer, make) for layer in keep
              for name, make in _router_tensors(source, layer).items()}
    plan: list[tuple[Spec, Any]] = []
    for e in files.file.entries.values():
        match = EXPERT_NAME.fullmatch(e.name)
        if match:
            layer, expert = int(match[1]), int(match[2])
            if expert not in keep[layer]:
                continue
            name = e.name.replace(f".{expert}.{match[3]}",
                                  f".{keep[layer].index(expert)}.{match[3]}")
            plan.append((Spec(name, e.dtype, e.dims),
                         lambda n=e.name: files.file.read_blob(n)))
        elif e.name in router:
            layer, make = router[e.name]
            values = make(keep[layer])
            plan.append((Spec(e.name, e.dtype, values.shape), values))
        else:
            plan.append((Spec(e.name, e.dtype, e.dims),
                         lambda n=e.name: files.file.read_blob(n)))
    config = _mkim_config(files.file.config, keep, count)
    with MkimWriter(out, config, [spec for spec, _ in plan]) as writer:
        for spec, data in plan:
            if callable(data):
                writer.write_blob(spec.name, data())
            else:
                writer.write(spec.name, data)
        writer.commit()


def _mkim_config(config: dict[str, Any], keep: Keep, count: int) -> dict[str, Any]:
    out = json.loads(json.dumps(config))
    target, experts, top = out, "n_experts", "top_k"
    if "ds" in out:
        target, experts, top = out["ds"], "n_routed_experts", "num_experts_per_tok"
    target[experts], target[top] = count, min(int(target[top]), count)
    out["pruning"] = {"method": "keep-list", "experts": count,
                      "kept": {str(k): v for k, v in keep.items()}}
    return out


# -- safetensors ---------------------------------------------------------------------------------


def _drop_library(source: Checkpoint, files: SafetensorsSource, keep: Keep, count: int, out: Path,
                  record: dict[str, Any]) -> None:
    replaced = _gathered(source, files, keep)
    with Directory(out) as target:
        where: dict[str, str] = {}
        for number, shard in enumerate(files.shards):
            items: list[Item] = []
            for name in files.names():
                place = files.place(name)
                if place.shard != number:
                    continue
                items += replaced[name] if name in replaced else [
                    Item(name, place.kind, place.shape, lambda n=name: files.raw(n))]
            write_safetensors(target.path / shard.path.name, items, shard.metadata)
            where |= {item.name: shard.path.name for item in items}
        copy_side_files(source.path, target.path, {s.path.name for s in files.shards})
        if (source.path / INDEX).is_file():
            write_json(target.path / INDEX, {"metadata": {}, "weight_map": where})
        _write_config(source, target.path, count)
        write_json(target.path / RECORD, record)
        target.commit()


def _gathered(source: Checkpoint, files: SafetensorsSource, keep: Keep) -> dict[str, list[Item]]:
    """What becomes of every tensor that experts or routers lie in; [] where it is left out."""
    out: dict[str, list[Item]] = {}
    for layer, kept in keep.items():
        for name, make in _router_tensors(source, layer).items():
            place, values = files.place(source.slot(name).name), make(kept)
            data = codecs.plain_from_f32(place.kind, values)
            out[source.slot(name).name] = [Item(source.slot(name).name, place.kind, values.shape,
                                                lambda d=data: d)]
        for e, mlp in enumerate(source.layers[layer].ffn.experts):
            for matrix in (mlp.gate, mlp.up, mlp.down):
                slot = source.slot(matrix.name)
                if slot.index is not None:
                    out.setdefault(slot.name, [_stack(files, slot.name, kept)])
                    continue
                scale = files.scale_of(slot.name)
                for name in [slot.name, *([scale] if scale else [])]:
                    out[name] = [] if e not in kept else [
                        _renamed(files, name, e, kept.index(e))]
    return out


def _stack(files: SafetensorsSource, name: str, kept: list[int]) -> Item:
    place = files.place(name)
    return Item(name, place.kind, (len(kept), *place.shape[1:]),
                lambda: np.concatenate([files.raw(name, e) for e in kept]))


def _renamed(files: SafetensorsSource, name: str, old: int, new: int) -> Item:
    place = files.place(name)
    return Item(name.replace(f"experts.{old}.", f"experts.{new}."), place.kind, place.shape,
                lambda: files.raw(name))


def _write_config(source: Checkpoint, folder: Path, count: int) -> None:
    raw = read_json(folder / "config.json")
    target = next((raw[k] for k in ("text_config", "ds") if isinstance(raw.get(k), dict)), raw)
    for key in ("num_experts", "n_routed_experts", "num_local_experts", "n_experts"):
        if key in target:
            target[key] = count
    for key in ("num_experts_per_tok", "num_experts_per_token", "top_k"):
        if key in target:
            target[key] = min(int(target[key]), count)
    write_json(folder / "config.json", raw)
