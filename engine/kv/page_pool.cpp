#include "engine/kv/page_pool.h"

#include <cstring>
#include <utility>

namespace kveval::kv {

Page* PagePool::take() {
  if (free_ == nullptr) {
    auto page = std::make_unique<Page>();
    page->memory.reset(static_cast<uint8_t*>(::operator new(page_bytes_, Page::kAlignment)));
    page->pool = this;
    pages_.push_back(std::move(page));
    free_ = pages_.back().get();
  }
  Page* page = std::exchange(free_, free_->next_free);
  std::memset(page->codes(), 0, page_bytes_);
  page->references = 1;
  return page;
}

void PagePool::give_back(Page* page) noexcept { page->next_free = std::exchange(free_, page); }

}  // namespace kveval::kv
