// Memory of a cache's pages of one size: taken and given back by the thousand, returned to the system with
// the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace kveval::kv {

class PagePool;

struct Page {
  static constexpr std::align_val_t kAlignment{64};  // a cache line, and one AVX-512 load

  struct Free {
    void operator()(uint8_t* codes) const { ::operator delete(codes, kAlignment); }
  };
  std::unique_ptr<uint8_t, Free> memory;
  uint8_t* codes() const { return memory.get(); }

  size_t references = 0;  // sequences whose table names this page
  PagePool* pool = nullptr;
  Page* next_free = nullptr;
};

class PagePool {
 public:
  explicit PagePool(size_t page_bytes) : page_bytes_(page_bytes) {}

  size_t page_bytes() const { return page_bytes_; }
  Page* take();  // zero bytes, one reference; throws std::bad_alloc
  void give_back(Page* page) noexcept;

 private:
  size_t page_bytes_;
  std::vector<std::unique_ptr<Page>> pages_;
  Page* free_ = nullptr;
};

}  // namespace kveval::kv
