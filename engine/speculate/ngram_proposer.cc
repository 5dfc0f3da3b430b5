#include "engine/speculate/ngram_proposer.h"

#include <algorithm>
#include <utility>

namespace mk {
namespace {

constexpr size_t kFirstSlots = 64;

// The mixing step of murmur3 for a hash of 32 bits, over the tokens from the last one back.
uint32_t Mix(uint32_t hash, int32_t token) {
  hash ^= static_cast<uint32_t>(token) * 0xcc9e2d51u;
  hash = (hash << 13) | (hash >> 19);
  return hash * 5 + 0xe6546b64u;
}

// And its end, so that the low bits depend on all others.
uint32_t Finish(uint32_t hash) {
  hash ^= hash >> 16;
  hash *= 0x85ebca6bu;
  hash ^= hash >> 13;
  hash *= 0xc2b2ae35u;
  return hash ^ (hash >> 16);
}

}  // namespace

void NgramProposer::Feed(int32_t token) {
  text_.push_back(token);
  earlier_.fill(0);
  uint32_t hash = 0;
  for (size_t length = 1; length <= std::min(kLongest, text_.size()); ++length) {
    hash = Mix(hash, text_[text_.size() - length]);
    if (length < kShortest) continue;
    const size_t i = length - kShortest;
    earlier_[i] = Put(tables_[i], Finish(hash), length);
  }
}

uint32_t NgramProposer::Put(Table& table, uint32_t hash, size_t length) {
  if ((table.used + 1) * 4 > table.slots.size() * 3) Grow(table);
  const size_t mask = table.slots.size() - 1;
  const auto end = text_.end();
  const auto begin = end - static_cast<std::ptrdiff_t>(length);
  const auto next = static_cast<uint32_t>(text_.size());
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    Slot& slot = table.slots[at];
    if (slot.next == 0) {
      slot = {hash, next};
      ++table.used;
      return 0;
    }
    const auto there = text_.begin() + static_cast<std::ptrdiff_t>(slot.next - length);
    if (slot.hash == hash && std::equal(begin, end, there)) return std::exchange(slot.next, next);
  }
}

void NgramProposer::Grow(Table& table) {
  std::vector<Slot> larger(std::max(kFirstSlots, table.slots.size() * 2));
  const size_t mask = larger.size() - 1;
  for (const Slot& slot : table.slots) {
    if (slot.next == 0) continue;
    size_t at = slot.hash & mask;
    while (larger[at].next != 0) at = (at + 1) & mask;
    larger[at] = slot;
  }
  table.slots = std::move(larger);
}

Draft NgramProposer::Propose(size_t most) const {
  Draft draft;
  for (size_t i = kLengths; i-- > 0;) {
    if (earlier_[i] == 0) continue;
    const auto from = text_.begin() + static_cast<std::ptrdiff_t>(earlier_[i]);
    const size_t count = std::min(most, text_.size() - earlier_[i]);
    draft.tokens.assign(from, from + static_cast<std::ptrdiff_t>(count));
    draft.match = i + kShortest;
    break;
  }
  return draft;
}

void NgramProposer::Clear() {
  *this = NgramProposer();
}

size_t NgramProposer::bytes() const {
  size_t bytes = text_.capacity() * sizeof(int32_t);
  for (const Table& table : tables_) bytes += table.slots.capacity() * sizeof(Slot);
  return bytes;
}

size_t NgramProposer::MaxBytes(size_t tokens) {
  const size_t held = std::min(tokens, kMaxHistory);
  // A table grows when three quarters are used, so that there are at most 8 slots for 3 tokens; one
  // table that grows is there twice. The text doubles.
  return (kLengths + 1) * std::max(kFirstSlots, held * 8 / 3 + 1) * sizeof(Slot) +
         2 * held * sizeof(int32_t);
}

}  // namespace mk
