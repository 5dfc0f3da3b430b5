// The state of DSV4 sequences as arrays (engine/model/state.h).

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "engine/arch/state_values.h"
#include "engine/dsv4/dsv4_model.h"
#include "engine/dsv4/sequence.h"
#include "engine/kernels/fp8_rows.h"
#include "engine/kernels/q8_lanes.h"

namespace mk::dsv4 {
namespace {

// Twice the largest value of e2m1.
constexpr int8_t kLargestFp4 = 12;

uint32_t Dim(size_t value) {
  return static_cast<uint32_t>(value);
}

// Padding is not part of a state.
void CleanRow(const CachedRowShape& shape, std::byte* row) {
  if (!shape.packed) return;
  const size_t end = shape.first + shape.blocks();
  std::memset(row + end, 0, shape.tail_offset() - end);
}

// A kept row holds nothing but finite values.
bool SoundRow(const CachedRowShape& shape, const std::byte* row) {
  if (!shape.packed) return AllFinite({reinterpret_cast<const float*>(row), shape.width()});
  for (size_t i = 0; i < shape.first; ++i) {
    if ((row[i] & std::byte{0x7f}) == std::byte{0x7f}) return false;  // not a number in e4m3
  }
  for (size_t b = 0; b < shape.blocks(); ++b) {
    if (static_cast<int8_t>(row[shape.first + b]) < -126) return false;
  }
  return AllFinite({reinterpret_cast<const float*>(row + shape.tail_offset()), shape.tail});
}

}  // namespace

Result<std::vector<StateSection>> Dsv4Model::LayOutState(const StateKey& key) const {
  const Dsv4Shape& s = *shape_;
  if (key.rewindable > kRewindTokens) {
    return Fail(ErrorCode::kInvalidArgument, "no state of a DeepSeek-V4 model can go back by " +
                                                 std::to_string(key.rewindable) + " tokens");
  }
  const CachedRowShape row = s.cached_row();
  const StateType row_type = row.packed ? StateType::kBytes : StateType::kF32;
  const size_t row_width = row.packed ? row.bytes() : row.width();
  std::vector<StateSection> sections;
  for (size_t l = 0; l < s.layers; ++l) {
    const auto add = [&](StateArray array, StateType type, size_t a, size_t b, size_t c) {
      sections.push_back({array, static_cast<uint16_t>(l), type, {Dim(a), Dim(b), Dim(c)}});
    };
    // Of a ring, what the next token needs and what going back takes.
    const auto kept = [&](size_t needed) { return std::min(key.length, needed + key.rewindable); };
    add(StateArray::kWindowRows, row_type, kept(s.window), row_width, 1);
    if (s.ratio[l] == 0) continue;
    const size_t inputs = kept(s.compressor_slots(l) - kRewindTokens);
    const size_t groups = key.length / s.ratio[l];
    add(StateArray::kCompressedRows, row_type, groups, row_width, 1);
    add(StateArray::kCompressorInputs, StateType::kF32, inputs, 2, s.compressor_width(l));
    if (!s.indexed(l)) continue;
    add(StateArray::kIndexInputs, StateType::kF32, inputs, 2, 2 * s.index_dim);
    if (s.round_caches) {
      add(StateArray::kIndexKeys, StateType::kI8, groups, s.index_dim, 1);
      add(StateArray::kIndexKeyScales, StateType::kF32, groups, s.index_dim / kQ8Group, 1);
    } else {
      add(StateArray::kIndexKeys, StateType::kF32, groups, s.index_dim, 1);
    }
  }
  return sections;
}

std::byte* Dsv4Sequence::StateRow(const StateSection& section, size_t row) const {
  const size_t layer = section.layer;
  const size_t position = length() - section.dims[0] + row;  // of rings
  switch (section.array) {
    case StateArray::kWindowRows:
      return WindowRow(layer, position);
    case StateArray::kCompressedRows:
      return CompressedRow(layer, row);
    case StateArray::kCompressorInputs:
      return reinterpret_cast<std::byte*>(CompressorHistory(layer, position));
    case StateArray::kIndexInputs:
      return reinterpret_cast<std::byte*>(IndexHistory(layer, position));
    default:
      return nullptr;
  }
}

void Dsv4Sequence::ReadState(const StateSection& section, std::span<std::byte> out) const {
  const CachedRowShape cached = shape_->cached_row();
  const size_t groups = shape_->index_dim / kQ8Group;
  for (size_t row = 0; row < section.dims[0]; ++row) {
    const size_t stride = out.size() / section.dims[0];
    std::byte* const to = out.data() + row * stride;
    const size_t lane = row % kPageRows;
    if (section.array == StateArray::kIndexKeyScales) {
      ReadQ8Scales(KeyTile(section.layer, row), groups, lane, reinterpret_cast<float*>(to));
    } else if (section.array != StateArray::kIndexKeys) {
      std::memcpy(to, StateRow(section, row), stride);
      if (section.type == StateType::kBytes) CleanRow(cached, to);
    } else if (section.type == StateType::kI8) {
      ReadQ8Codes(KeyTile(section.layer, row), groups, lane, reinterpret_cast<int8_t*>(to));
    } else {
      const auto* panel = reinterpret_cast<const float*>(
          KeyTile(section.layer, row) +
          lane / kPanelRows * PanelBytes(WeightKind::kF32, shape_->index_dim));
      for (size_t c = 0; c < shape_->index_dim; ++c) {
        reinterpret_cast<float*>(to)[c] = panel[c * kPanelRows + lane % kPanelRows];
      }
    }
  }
}

Status Dsv4Sequence::Grow(const StateKey& key) {
  if (Status room = Reserve(key.length, false); !room) return room;
  set_length(key.length);
  settled_ = key.length;
  // What cannot be gone back to has been overwritten.
  const size_t most = std::min(key.length, kRewindTokens);
  written_ = key.rewindable < most ? key.length + kRewindTokens - key.rewindable : 0;
  return {};
}

bool Dsv4Sequence::WriteState(const StateSection& section, std::span<const std::byte> in) {
  const CachedRowShape cached = shape_->cached_row();
  const size_t groups = shape_->index_dim / kQ8Group;
  const size_t rows = section.dims[0];
  const size_t stride = rows > 0 ? in.size() / rows : 0;
  switch (section.array) {
    case StateArray::kWindowRows:
    case StateArray::kCompressedRows:
      for (size_t row = 0; row < rows; ++row) {
        if (!SoundRow(cached, in.data() + row * stride)) return false;
      }
      break;
    case StateArray::kIndexKeyScales:
      if (!AllScales(FloatsOf(in))) return false;
      break;
    default:
      if (section.type == StateType::kI8 ? !AllWithin(CodesOf(in), kLargestFp4)
                                         : !AllFinite(FloatsOf(in))) {
        return false;
      }
  }
  for (size_t row = 0; row < rows; ++row) {
    const std::byte* const from = in.data() + row * stride;
    const size_t lane = row % kPageRows;
    if (section.array == StateArray::kIndexKeyScales) {
      WriteQ8Scales(reinterpret_cast<const float*>(from), groups, lane,
                    KeyTile(section.layer, row));
    } else if (section.array != StateArray::kIndexKeys) {
      std::memcpy(StateRow(section, row), from, stride);
    } else if (section.type == StateType::kI8) {
      WriteQ8Codes(reinterpret_cast<const int8_t*>(from), groups, lane,
                   KeyTile(section.layer, row));
    } else {
      PackRows(WeightKind::kF32, {reinterpret_cast<const float*>(from), shape_->index_dim}, lane, 1,
               shape_->index_dim, {KeyTile(section.layer, row), shape_->key_tile_bytes()});
    }
  }
  return true;
}

}  // namespace mk::dsv4
