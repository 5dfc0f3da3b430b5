// RankTable: the tokens of a tiktoken rank file, and the merging of bytes by lowest rank.
//
// The file has one line "<base64 of the token's bytes> <rank>" per token; rank is the token's id.
// Immutable after loading, thread-safe to read.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace mk {

// No real token is longer; bounds the work on one candidate pair.
inline constexpr size_t kMaxTokenBytes = 4096;
// No real rank file has more entries or more bytes.
inline constexpr size_t kMaxRanks = size_t{1} << 20;
inline constexpr uint64_t kMaxRankFileBytes = uint64_t{64} << 20;

class RankTable {
 public:
  // Parses the text of a rank file; `what` names it in messages. Checked: strict base64, ranks
  // 0..n-1 each once, tokens of 1 to 4096 bytes, all different, all 256 single bytes present, and
  // n == expected_size when that is given. Errors: kCorrupt, kIncompatible (the size).
  static Result<RankTable> Parse(std::string_view text, const std::string& what,
                                 std::optional<size_t> expected_size = std::nullopt);
  // The table of these tokens, rank = index. Same checks.
  static Result<RankTable> FromTokens(const std::vector<std::string>& tokens,
                                      const std::string& what);

  size_t size() const { return spans_.size(); }
  // Bytes of a token; `id` in [0, size).
  std::string_view Bytes(int32_t id) const {
    const Span& span = spans_[static_cast<size_t>(id)];
    return std::string_view(arena_).substr(span.offset, span.length);
  }
  // Id of the token with exactly these bytes, -1 when there is none.
  int32_t Find(std::string_view bytes) const;
  size_t longest() const { return longest_; }  // bytes of the longest token

  // Appends the ids of one chunk. A chunk that is a token is that token; else, starting from single
  // bytes, the adjacent pair whose joined bytes have the lowest rank is joined, leftmost first
  // among equals, until no joined pair is a token. O(n log n) in the length of the chunk.
  void AppendChunk(std::string_view chunk, std::vector<int32_t>& ids) const;

 private:
  struct Span {
    uint32_t offset = 0;  // into arena_
    uint32_t length = 0;  // bytes
  };

  RankTable() = default;
  Status Build(const std::string& what);
  void MergeShort(std::string_view chunk, std::vector<int32_t>& ids) const;
  void MergeLong(std::string_view chunk, std::vector<int32_t>& ids) const;

  std::string arena_;
  std::vector<Span> spans_;     // by id
  std::vector<int32_t> slots_;  // open addressing by bytes, load at most a half; -1 = free
  size_t longest_ = 0;
};

}  // namespace mk
