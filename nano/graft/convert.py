"""Between `.bin` and published safetensors, for Kimi K3 and DeepSeek-V4.

Values do not change unless experts that are not yet MXFP4 go into a `.bin` (and with `keep_f32`
not even then).  The target is written tensor by tensor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from nano import mxfp4
from nano.arch import model_tensors
from nano.config import K3Config
from nano.dsv4.config import Dsv4Config
from nano.graft import codecs, published
from nano.graft.checkpoint import Checkpoint
from nano.graft.errors import GraftError
from nano.graft.source import MkimSource, SafetensorsSource
from nano.graft.write import (
    Directory,
    Item,
    copy_vocabulary,
    refuse_existing,
    vocabulary_files,
    write_safetensors,
)
from nano.mkim import DType, MkimError
from nano.mkim_writer import MkimWriter, Spec
from nano.tensors import EXPERT_NAME, Tensor

KIMI_PREFIX = "language_model.model."


def convert(source: Checkpoint, to: str, out: Path, keep_f32: bool = False) -> None:
    """`to`: mkim or hf."""
    if source.engine_cfg is None:
        raise GraftError(f"{source.path}: a {source.arch} model has no other format; only Kimi K3 "
                         "and DeepSeek-V4 have a .bin form")
    refuse_existing(out)
    if to == "mkim":
        if out.suffix != ".bin":
            raise GraftError(f"{out}: a model file must end in .bin")
        _to_mkim(source, out, keep_f32)
    else:
        _to_library(source, out)


# -- to .bin -------------------------------------------------------------------------------------


def _expert_kind(source: Checkpoint, t: Tensor, keep_f32: bool) -> DType:
    files, name = source.source, source.slot(t.name).name
    if isinstance(files, MkimSource):
        return files.file.entry(name).dtype
    if keep_f32 and not files.is_packed(name):
        return DType.F32
    return DType.MXFP4


def _to_mkim(source: Checkpoint, out: Path, keep_f32: bool) -> None:
    config = source.engine_cfg
    assert config is not None
    tensors = list(model_tensors(config))
    specs = []
    for t in tensors:
        kind = DType.I32 if t.integer else DType.F32
        specs.append(Spec(t.name, _expert_kind(source, t, keep_f32) if t.expert else kind, t.dims))
    try:
        with MkimWriter(out, config.to_json(), specs) as writer:
            for t in tensors:
                blob = _packed_blob(source, t) if t.expert else None
                if blob is not None:
                    writer.write_blob(t.name, blob)
                else:
                    writer.write(t.name, source.value(t.name).reshape(t.dims))
            writer.commit()
    except MkimError as err:
        raise GraftError(str(err)) from err
    copy_tokenizer_to_mkim(source, out)


def _packed_blob(source: Checkpoint, t: Tensor) -> np.ndarray | None:
    """The bytes of an expert that is MXFP4 already."""
    files, slot = source.source, source.slot(t.name)
    if slot.name in source.staged:
        return None
    if isinstance(files, MkimSource):
        return files.file.read_blob(t.name)
    if not files.is_packed(slot.name):
        return None
    scale = files.scale_of(slot.name)
    assert scale is not None
    source.value(t.name)  # refuses scale bytes that are no numbers
    return np.concatenate([files.raw(slot.name), files.raw(scale)])


def copy_tokenizer_to_mkim(source: Checkpoint, out: Path) -> None:
    if isinstance(source.source, MkimSource):
        copy_vocabulary(source.path, out)
        return
    found = source.path / "tokenizer.json"
    if isinstance(source.engine_cfg, Dsv4Config) and found.is_file():
        out.with_name(out.stem + ".tokenizer.json").write_bytes(found.read_bytes())


# -- to safetensors ------------------------------------------------------------------------------


def _to_library(source: Checkpoint, out: Path) -> None:
    config = source.engine_cfg
    if isinstance(config, K3Config):
        raw: dict[str, Any] = published.k3_to_published(config)
        if config.kda_a_log != "head":
            raise GraftError(f"{source.path}: its decay rates are per channel; the published form "
                             "has one per head. Export the model again with --a-log fold")
    else:
        assert isinstance(config, Dsv4Config)
        raw = published.dsv4_to_library(config)
    items = [item for t in model_tensors(config) for item in _items(source, t)]
    with Directory(out) as target:
        write_safetensors(target.path / "model.safetensors", items, {"format": "pt"})
        (target.path / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
        if isinstance(source.source, MkimSource):
            for path in vocabulary_files(source.path):
                name = path.name.removeprefix(source.path.stem + ".")
                (target.path / name).write_bytes(path.read_bytes())
        target.commit()


def _library_name(source: Checkpoint, name: str) -> str:
    if isinstance(source.engine_cfg, K3Config):
        if name == "lm_head.weight":
            return "language_model.lm_head.weight"
        return KIMI_PREFIX + name
    return f"{name}.weight" if EXPERT_NAME.fullmatch(name) else name


def _items(source: Checkpoint, t: Tensor) -> list[Item]:
    name = _library_name(source, t.name)
    if t.expert and isinstance(source.engine_cfg, K3Config):
        rows, cols = t.dims
        half = rows * cols // 2

        def packed() -> np.ndarray:
            if _is_mxfp4(source, t):
                blob = _packed_blob(source, t)
                assert blob is not None
                return blob
            return mxfp4.encode(source.value(t.name))

        return [Item(f"{name}.weight_packed", "U8", (rows, cols // 2), lambda: packed()[:half]),
                Item(f"{name}.weight_scale", "U8", (rows, cols // mxfp4.GROUP),
                     lambda: packed()[half:])]
    kind = "I64" if t.integer else "F32"
    dims = t.dims
    if "conv1d" in t.name:
        dims = (t.dims[0], 1, t.dims[1])
    elif t.name.endswith("res_proj.weight"):
        dims = (1, *t.dims)
    return [Item(name, kind, dims,
                 lambda: codecs.plain_from_f32(kind, source.value(t.name).reshape(dims)))]


def _is_mxfp4(source: Checkpoint, t: Tensor) -> bool:
    files = source.source
    if isinstance(files, SafetensorsSource):
        return files.is_packed(source.slot(t.name).name)
    return files.file.entry(t.name).dtype == DType.MXFP4
