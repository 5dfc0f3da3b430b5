// CountSketch: a count-min sketch of experts' use, in the format MKCMS001 of the reference engine.
//
// Four rows of 4096 counters that saturate. Each row has one counter for a pair, chosen by a hash;
// the smallest of the four is the estimate, never below the true count. With the 82 thousand pairs
// of a large model about twenty share each counter: good for the head, noise below it. The format
// is for exchange; what is counted here is exact.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "routing/pick.h"

namespace mk::routing {

class CountSketch {
 public:
  static constexpr size_t kRows = 4;
  static constexpr size_t kColumns = 4096;
  static constexpr size_t kFileBytes = 36 + kRows * kColumns * 4;

  CountSketch() : cells_(kRows * kColumns) {}

  // The column of a pair in a row: splitmix64 of layer << 32 | expert, the row-th output.
  static size_t ColumnOf(const Pick& pick, size_t row);

  // The pair was picked so many times more. It must be below kMaxLayers and kMaxExperts.
  void Add(const Pick& pick, uint64_t count = 1);
  uint32_t Estimate(const Pick& pick) const;
  // Cell by cell; sums stop at the largest number.
  void Merge(const CountSketch& other);

  uint64_t total() const { return total_; }
  // One more than the largest layer and expert seen; 1 when none was.
  uint32_t layers() const { return layers_; }
  uint32_t experts() const { return experts_; }

  std::string Serialize() const;
  // Errors: kBadRequest, with what is wrong: length, magic, version, geometry, a pair beyond the
  // limits.
  static protocol::Result<CountSketch> Parse(std::string_view bytes);

 private:
  uint32_t layers_ = 1;
  uint32_t experts_ = 1;
  uint64_t total_ = 0;
  std::vector<uint32_t> cells_;  // [row][column]
};

// Pairs by estimate, the largest first, equal ones by layer, then expert; those of none left out.
struct Estimated {
  Pick pick;
  uint32_t count = 0;
};
std::vector<Estimated> Ranked(const CountSketch& sketch);

// How many of the first pairs of a ranking make up how much of it.
struct Coverage {
  uint32_t percent = 0;  // of the pairs, at least
  size_t pairs = 0;      // the first prefix of that many
  double share = 0;      // of the sum of all estimates
};
// At 1, 5, 10, 25, 50 and 100 percent; none of an empty ranking.
std::vector<Coverage> CoverageOf(const std::vector<Estimated>& ranked);

}  // namespace mk::routing
