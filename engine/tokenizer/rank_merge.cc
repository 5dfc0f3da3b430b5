// Merging of one chunk by lowest rank, twice: plainly for short chunks, with a heap for long ones.

#include <array>
#include <limits>
#include <queue>

#include "engine/tokenizer/rank_table.h"

namespace mk {
namespace {

constexpr size_t kShortChunk = 64;  // bytes; nearly every chunk of ordinary text is shorter
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

}  // namespace

void RankTable::AppendChunk(std::string_view chunk, std::vector<int32_t>& ids) const {
  if (chunk.empty()) return;
  if (const int32_t whole = Find(chunk); whole >= 0) {
    ids.push_back(whole);
  } else if (chunk.size() <= kShortChunk) {
    MergeShort(chunk, ids);
  } else {
    MergeLong(chunk, ids);
  }
}

// Parts lie in an array; every round scans it for the lowest rank.
void RankTable::MergeShort(std::string_view chunk, std::vector<int32_t>& ids) const {
  std::array<uint8_t, kShortChunk + 1> start;  // of each part, then the end of the chunk
  std::array<int32_t, kShortChunk> rank;       // of a part joined with the next
  size_t parts = chunk.size();
  const auto rank_of = [&](size_t part) {
    if (part + 1 >= parts) return kNoRank;
    const int32_t id = Find(chunk.substr(start[part], start[part + 2] - start[part]));
    return id < 0 ? kNoRank : id;
  };
  for (size_t i = 0; i <= parts; ++i) start[i] = static_cast<uint8_t>(i);
  for (size_t i = 0; i < parts; ++i) rank[i] = rank_of(i);
  for (;;) {
    size_t best = 0;
    for (size_t i = 1; i < parts; ++i) {
      if (rank[i] < rank[best]) best = i;
    }
    if (rank[best] == kNoRank) break;
    for (size_t i = best + 1; i < parts; ++i) {
      start[i] = start[i + 1];
      if (i + 1 < parts) rank[i] = rank[i + 1];
    }
    --parts;
    rank[best] = rank_of(best);
    if (best > 0) rank[best - 1] = rank_of(best - 1);
  }
  for (size_t i = 0; i < parts; ++i) {
    ids.push_back(Find(chunk.substr(start[i], start[i + 1] - start[i])));
  }
}

// Parts are a linked list over byte positions; candidate joins wait in a heap. A candidate is the
// substring [start, start + length of its token), so it is stale exactly when a part no longer
// starts there or the part and its successor no longer end there.
void RankTable::MergeLong(std::string_view chunk, std::vector<int32_t>& ids) const {
  const auto n = static_cast<uint32_t>(chunk.size());
  std::vector<uint32_t> end(n);       // of the part that starts here; kNone: none does
  std::vector<uint32_t> previous(n);  // start of the part before the part that starts here
  // (rank << 32) | start: the smallest is the lowest rank, leftmost on ties.
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> candidates;
  const auto consider = [&](uint32_t start) {
    if (end[start] >= n) return;
    const int32_t id = Find(chunk.substr(start, end[end[start]] - start));
    if (id >= 0) candidates.push((uint64_t{static_cast<uint32_t>(id)} << 32) | start);
  };
  for (uint32_t i = 0; i < n; ++i) {
    end[i] = i + 1;
    previous[i] = i == 0 ? kNone : i - 1;
  }
  for (uint32_t i = 0; i < n; ++i) consider(i);
  while (!candidates.empty()) {
    const uint64_t top = candidates.top();
    candidates.pop();
    const auto start = static_cast<uint32_t>(top);
    const size_t length = Bytes(static_cast<int32_t>(top >> 32)).size();
    const uint32_t middle = end[start];
    if (middle == kNone || middle >= n || end[middle] - start != length) continue;
    end[start] = end[middle];
    end[middle] = kNone;
    if (end[start] < n) previous[end[start]] = start;
    consider(start);
    if (previous[start] != kNone) consider(previous[start]);
  }
  for (uint32_t i = 0; i < n; i = end[i]) ids.push_back(Find(chunk.substr(i, end[i] - i)));
}

}  // namespace mk
