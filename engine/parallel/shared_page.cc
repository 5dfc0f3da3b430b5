#include "engine/parallel/shared_page.h"

#include <cstring>
#include <utility>

namespace mk {

Result<SharedPage> SharedPage::New(size_t bytes) {
  Result<PageBuffer> memory = PageBuffer::Allocate(bytes);
  if (!memory) return Fail(memory.error());
  SharedPage page;
  page.page_ = std::make_shared<PageBuffer>(std::move(*memory));
  return page;
}

Status SharedPage::Own() {
  if (page_.use_count() > 1) {
    Result<SharedPage> copy = New(size());
    if (!copy) return Fail(copy.error());
    if (size() > 0) std::memcpy(copy->data(), data(), size());
    page_ = std::move(copy->page_);
  }
  // use_count() orders nothing. Giving up a reference of our own does, against a holder that has
  // just given the page up after copying it.
  std::shared_ptr<PageBuffer>(page_).reset();
  return {};
}

Status ReservePages(std::vector<SharedPage>& pages, size_t full, size_t count, size_t page_bytes) {
  if (full < pages.size()) {
    if (Status own = pages[full].Own(); !own) return own;
  }
  while (pages.size() < count) {
    Result<SharedPage> page = SharedPage::New(page_bytes);
    if (!page) return Fail(page.error());
    pages.push_back(std::move(*page));
  }
  return {};
}

}  // namespace mk
