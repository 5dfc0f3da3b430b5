#include "routing/count_sketch.h"

#include <algorithm>
#include <limits>

#include "routing/bytes.h"

namespace mk::routing {
namespace {

constexpr std::string_view kMagic = "MKCMS001";
constexpr uint32_t kVersion = 1;

template <typename T>
T Saturated(T a, uint64_t b) {
  constexpr T kMost = std::numeric_limits<T>::max();
  return b > kMost - a ? kMost : static_cast<T>(a + b);
}

tl::unexpected<protocol::Error> Bad(const std::string& what) {
  return protocol::Fail(protocol::ErrorCode::kBadRequest, what,
                        "only files of the format MKCMS001 can be read");
}

}  // namespace

size_t CountSketch::ColumnOf(const Pick& pick, size_t row) {
  uint64_t z = (uint64_t{pick.layer} << 32 | pick.expert) + 0x9E3779B97F4A7C15u * (row + 1);
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<size_t>(z % kColumns);
}

void CountSketch::Add(const Pick& pick, uint64_t count) {
  if (count == 0) return;
  for (size_t row = 0; row < kRows; ++row) {
    uint32_t& cell = cells_[row * kColumns + ColumnOf(pick, row)];
    cell = Saturated(cell, count);
  }
  total_ = Saturated(total_, count);
  layers_ = std::max(layers_, pick.layer + 1);
  experts_ = std::max(experts_, pick.expert + 1);
}

uint32_t CountSketch::Estimate(const Pick& pick) const {
  uint32_t least = std::numeric_limits<uint32_t>::max();
  for (size_t row = 0; row < kRows; ++row) {
    least = std::min(least, cells_[row * kColumns + ColumnOf(pick, row)]);
  }
  return least;
}

void CountSketch::Merge(const CountSketch& other) {
  for (size_t i = 0; i < cells_.size(); ++i) cells_[i] = Saturated(cells_[i], other.cells_[i]);
  total_ = Saturated(total_, other.total_);
  layers_ = std::max(layers_, other.layers_);
  experts_ = std::max(experts_, other.experts_);
}

std::string CountSketch::Serialize() const {
  std::string bytes(kMagic);
  bytes.reserve(kFileBytes);
  Append(bytes, kVersion);
  Append(bytes, static_cast<uint32_t>(kRows));
  Append(bytes, static_cast<uint32_t>(kColumns));
  Append(bytes, layers_);
  Append(bytes, experts_);
  Append(bytes, total_);
  for (const uint32_t cell : cells_) Append(bytes, cell);
  return bytes;
}

protocol::Result<CountSketch> CountSketch::Parse(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) return Bad("it is no sketch: MKCMS001 is missing");
  if (bytes.size() != kFileBytes) {
    return Bad("it has " + std::to_string(bytes.size()) + " bytes, a sketch has " +
               std::to_string(kFileBytes));
  }
  Reader reader(bytes.substr(kMagic.size()));
  const uint32_t version = *reader.Take<uint32_t>();
  const uint32_t rows = *reader.Take<uint32_t>();
  const uint32_t columns = *reader.Take<uint32_t>();
  if (version != kVersion) return Bad("it is of version " + std::to_string(version) + ", not 1");
  if (rows != kRows || columns != kColumns) {
    return Bad("it has " + std::to_string(rows) + " rows of " + std::to_string(columns) +
               " counters, not 4 of 4096");
  }
  CountSketch sketch;
  sketch.layers_ = *reader.Take<uint32_t>();
  sketch.experts_ = *reader.Take<uint32_t>();
  sketch.total_ = *reader.Take<uint64_t>();
  if (sketch.layers_ < 1 || sketch.layers_ > kMaxLayers || sketch.experts_ < 1 ||
      sketch.experts_ > kMaxExperts || uint64_t{sketch.layers_} * sketch.experts_ > kMaxPairs) {
    return Bad("it claims " + std::to_string(sketch.layers_) + " layers of " +
               std::to_string(sketch.experts_) + " experts");
  }
  for (uint32_t& cell : sketch.cells_) cell = *reader.Take<uint32_t>();
  return sketch;
}

std::vector<Estimated> Ranked(const CountSketch& sketch) {
  std::vector<Estimated> ranked;
  for (uint32_t layer = 0; layer < sketch.layers(); ++layer) {
    for (uint32_t expert = 0; expert < sketch.experts(); ++expert) {
      const uint32_t count = sketch.Estimate({layer, expert});
      if (count > 0) ranked.push_back({{layer, expert}, count});
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Estimated& a, const Estimated& b) { return a.count > b.count; });
  return ranked;
}

std::vector<Coverage> CoverageOf(const std::vector<Estimated>& ranked) {
  uint64_t sum = 0;
  for (const Estimated& one : ranked) sum += one.count;
  std::vector<Coverage> coverage;
  uint64_t cumulative = 0;
  size_t pairs = 0;
  for (const uint32_t mark : {1u, 5u, 10u, 25u, 50u, 100u}) {
    while (pairs < ranked.size() && (pairs == 0 || 100 * pairs / ranked.size() < mark)) {
      cumulative += ranked[pairs++].count;
    }
    if (pairs == 0) break;
    coverage.push_back({mark, pairs, static_cast<double>(cumulative) / static_cast<double>(sum)});
  }
  return coverage;
}

}  // namespace mk::routing
