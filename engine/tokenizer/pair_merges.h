// PairMerges: byte-pair merging by a list of pairs of tokens, as tokenizer.json files hold it.
//
// A merge joins two neighbouring tokens, not the bytes that they spell: with the merges (b, c),
// (a, b), (ab, c) the text "abc" becomes a, bc and stays so, since (a, bc) is no merge.
// Immutable after making, thread-safe to read.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace mk {

struct PairMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t merged = 0;
};

class PairMerges {
 public:
  // `byte_ids`: token of each byte. `merges`: in order of rank, no pair twice, ids not negative,
  // fewer than 2^31.
  PairMerges(const std::array<int32_t, 256>& byte_ids, std::span<const PairMerge> merges);

  // Appends the tokens of `piece`: its bytes, then again and again the neighbouring pair of lowest
  // rank joined, the leftmost of equals, until no pair is a merge. O(n log n) for n bytes. Pieces
  // of 4 GiB and more are not supported.
  void AppendPiece(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    int32_t rank = 0;
    int32_t merged = 0;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  static uint64_t PairOf(int32_t left, int32_t right) {
    return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
  }
  size_t IndexOf(uint64_t pair) const;
  const Slot* Find(int32_t left, int32_t right) const;  // null: no merge

  void MergeShort(std::string_view piece, std::vector<int32_t>& ids) const;
  void MergeLong(std::string_view piece, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Slot> slots_;  // open addressing; at most half full, a power of two
  size_t mask_ = 0;
};

}  // namespace mk
