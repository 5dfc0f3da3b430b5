#include "engine/tokenizer/pair_merges.h"

#include <bit>
#include <functional>
#include <limits>
#include <queue>

namespace mk {
namespace {

constexpr size_t kShortPiece = 64;  // bytes; nearly every piece of ordinary text is shorter
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

}  // namespace

PairMerges::PairMerges(const std::array<int32_t, 256>& byte_ids, std::span<const PairMerge> merges)
    : byte_ids_(byte_ids), slots_(std::bit_ceil(2 * merges.size() + 2)), mask_(slots_.size() - 1) {
  int32_t rank = 0;
  for (const PairMerge& merge : merges) {
    const uint64_t pair = PairOf(merge.left, merge.right);
    slots_[IndexOf(pair)] = {pair, rank++, merge.merged};
  }
}

// Slot of the pair, or the empty one where it would stand.
size_t PairMerges::IndexOf(uint64_t pair) const {
  uint64_t hash = pair * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  size_t index = hash & mask_;
  while (slots_[index].pair != kEmpty && slots_[index].pair != pair) index = (index + 1) & mask_;
  return index;
}

const PairMerges::Slot* PairMerges::Find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[IndexOf(PairOf(left, right))];
  return slot.pair == kEmpty ? nullptr : &slot;
}

void PairMerges::AppendPiece(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() <= kShortPiece) {
    MergeShort(piece, ids);
  } else {
    MergeLong(piece, ids);
  }
}

// Tokens lie in an array; every round scans it for the lowest rank.
void PairMerges::MergeShort(std::string_view piece, std::vector<int32_t>& ids) const {
  std::array<int32_t, kShortPiece> token;
  std::array<int32_t, kShortPiece> rank;    // of a token joined with the next
  std::array<int32_t, kShortPiece> merged;  // what they become
  size_t count = piece.size();
  const auto look_up = [&](size_t i) {
    const Slot* slot = i + 1 < count ? Find(token[i], token[i + 1]) : nullptr;
    rank[i] = slot ? slot->rank : kNoRank;
    merged[i] = slot ? slot->merged : 0;
  };
  for (size_t i = 0; i < count; ++i) token[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (rank[i] < rank[best]) best = i;
    }
    if (rank[best] == kNoRank) break;
    token[best] = merged[best];
    for (size_t i = best + 1; i + 1 < count; ++i) {
      token[i] = token[i + 1];
      rank[i] = rank[i + 1];
      merged[i] = merged[i + 1];
    }
    --count;
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
  ids.insert(ids.end(), token.begin(), token.begin() + static_cast<ptrdiff_t>(count));
}

// Tokens are a linked list over byte positions; candidate joins wait in a heap. A pair at a
// position never returns once it is gone, since its token only grows, so a candidate is stale
// exactly when the rank of the pair that stands there now is another.
void PairMerges::MergeLong(std::string_view piece, std::vector<int32_t>& ids) const {
  const auto n = static_cast<uint32_t>(piece.size());
  std::vector<int32_t> token(n);  // that starts here
  std::vector<uint32_t> next(n);  // where the token after the one that starts here does; n: none
  std::vector<uint32_t> previous(n);
  std::vector<bool> gone(n);  // joined to the token before
  // (rank << 32) | start: the smallest is the lowest rank, leftmost on ties.
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> candidates;
  const auto consider = [&](uint32_t start) {
    if (start == kNone || next[start] >= n) return;
    const Slot* slot = Find(token[start], token[next[start]]);
    if (slot) candidates.push((uint64_t{static_cast<uint32_t>(slot->rank)} << 32) | start);
  };
  for (uint32_t i = 0; i < n; ++i) {
    token[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
    next[i] = i + 1;
    previous[i] = i == 0 ? kNone : i - 1;
  }
  for (uint32_t i = 0; i < n; ++i) consider(i);
  while (!candidates.empty()) {
    const uint64_t top = candidates.top();
    candidates.pop();
    const auto start = static_cast<uint32_t>(top);
    if (gone[start] || next[start] >= n) continue;
    const uint32_t second = next[start];
    const Slot* slot = Find(token[start], token[second]);
    if (slot == nullptr || static_cast<uint32_t>(slot->rank) != top >> 32) continue;
    token[start] = slot->merged;
    gone[second] = true;
    next[start] = next[second];
    if (next[start] < n) previous[next[start]] = start;
    consider(start);
    consider(previous[start]);
  }
  for (uint32_t i = 0; i < n; i = next[i]) ids.push_back(token[i]);
}

}  // namespace mk
