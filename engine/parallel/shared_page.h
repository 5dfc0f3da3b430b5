// SharedPage: memory that copies of a state share until one of them writes.
//
// Copying a handle shares the bytes. Whoever is about to write calls Own() first, which leaves the
// bytes with the other holders and gives this one a copy. Thread safety: a handle has one owner at
// a time; handles of the same bytes may be used by different threads.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/parallel/page_buffer.h"

namespace mk {

class SharedPage {
 public:
  // No bytes.
  SharedPage() = default;
  // Zeroed. kOutOfMemory; may throw std::bad_alloc, as Own().
  static Result<SharedPage> New(size_t bytes);

  // Nobody else holds these bytes from now on. kOutOfMemory, and nothing changes.
  Status Own();
  void MakeResident() const {
    if (page_) page_->MakeResident();
  }

  std::byte* data() const { return page_ ? page_->data() : nullptr; }
  size_t size() const { return page_ ? page_->size() : 0; }
  std::span<float> floats() const { return page_ ? page_->floats() : std::span<float>(); }
  // Bytes that no other handle holds at this moment.
  size_t own_bytes() const { return page_.use_count() == 1 ? page_->size() : 0; }

 private:
  std::shared_ptr<PageBuffer> page_;
};

// Makes room in a list of pages of equal size, of which the first `full` are never written again:
// the page behind them becomes the list's own, new ones follow until there are `count`. Errors as
// Own(); what was there stays.
Status ReservePages(std::vector<SharedPage>& pages, size_t full, size_t count, size_t page_bytes);

}  // namespace mk
