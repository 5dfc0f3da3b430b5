// KeyList: a doubly linked list of expert keys, in order of recency or of age.
//
// The links of all keys lie in one array that the lists of a cache share, so that linking,
// unlinking and moving allocate nothing and take constant time. A key is in at most one list.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace mk {

// An expert of a model: layer * experts + expert.
using ExpertKey = uint32_t;
inline constexpr ExpertKey kNoKey = std::numeric_limits<ExpertKey>::max();

struct KeyLinks {
  ExpertKey newer = kNoKey;
  ExpertKey older = kNoKey;
};
using KeyTable = std::vector<KeyLinks>;  // [keys]

class KeyList {
 public:
  // The table outlives the list.
  explicit KeyList(KeyTable& table) : table_(&table) {}

  bool empty() const { return newest_ == kNoKey; }
  ExpertKey newest() const { return newest_; }
  ExpertKey oldest() const { return oldest_; }
  // The next newer one; kNoKey: there is none.
  ExpertKey NewerThan(ExpertKey key) const { return (*table_)[key].newer; }

  // `key` is in no list.
  void PushNewest(ExpertKey key) {
    (*table_)[key] = {kNoKey, newest_};
    if (newest_ != kNoKey) {
      (*table_)[newest_].newer = key;
    } else {
      oldest_ = key;
    }
    newest_ = key;
  }

  // `key` is in this list.
  void Remove(ExpertKey key) {
    const KeyLinks links = (*table_)[key];
    if (links.newer != kNoKey) {
      (*table_)[links.newer].older = links.older;
    } else {
      newest_ = links.older;
    }
    if (links.older != kNoKey) {
      (*table_)[links.older].newer = links.newer;
    } else {
      oldest_ = links.newer;
    }
    (*table_)[key] = {};
  }

 private:
  KeyTable* table_;
  ExpertKey newest_ = kNoKey;
  ExpertKey oldest_ = kNoKey;
};

}  // namespace mk
