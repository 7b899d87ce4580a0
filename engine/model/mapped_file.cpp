#include "engine/model/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "engine/model/file_error.h"

namespace kveval {

// A node of a list that only grows: nodes of closed files are used again, never freed, so that a signal
// handler can walk the list at any moment. begin == end: describes no map.
struct MappedRegion {
  std::atomic<bool> taken = true;
  std::atomic<uintptr_t> begin = 0, end = 0;
  std::atomic<bool> lost = false;  // some pages were replaced by zeros
  MappedRegion* next = nullptr;
};

namespace {

static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<MappedRegion*>::is_always_lock_free);
std::atomic<MappedRegion*> regions = nullptr;
struct sigaction previous_action;
uintptr_t page_size = 0;

MappedRegion* take_region() {
  for (MappedRegion* region = regions.load(); region != nullptr; region = region->next) {
    bool free = false;
    if (region->taken.compare_exchange_strong(free, true)) return region;
  }
  auto* region = new MappedRegion;
  region->next = regions.load();
  while (!regions.compare_exchange_weak(region->next, region)) {}
  return region;
}

// Runs inside the faulting read: atomics and one system call only.
void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (MappedRegion* region = regions.load(); region != nullptr; region = region->next) {
    const uintptr_t end = region->end.load();
    if (address < region->begin.load() || address >= end) continue;
    // All the rest at once: page by page, a large file would run out of maps.
    const uintptr_t page = address & ~(page_size - 1);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): where the read faulted
    void* const at = reinterpret_cast<void*>(page);
    region->lost.store(true);
    if (mmap(at, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at) {
      errno = saved_errno;
      return;
    }
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0)
    previous_action.sa_sigaction(signal, info, context);
  else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN)
    previous_action.sa_handler(signal);
  else  // the read faults again and ends the process as it always did
    sigaction(SIGBUS, &previous_action, nullptr);
}

void install_handler_once() {
  static const bool installed = [] {
    page_size = uintptr_t(sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, nullptr, &previous_action) == 0 && sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  if (!installed) throw Error(ErrorKind::run, "no handler could be installed for SIGBUS");
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  install_handler_once();
  // Without O_NONBLOCK opening a FIFO would wait for a writer before fstat can refuse it.
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) throw file_error(path, fmt::format("cannot be opened ({})", std::strerror(errno)));
  struct stat status {};
  if (fstat(file.fd, &status) != 0)
    throw file_error(path, fmt::format("cannot be examined ({})", std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) throw file_error(path, "is not a regular file");
  if (status.st_size <= 0) throw file_error(path, "is empty");
  const auto size = size_t(status.st_size);
  void* const begin = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (begin == MAP_FAILED)
    throw file_error(path, fmt::format("cannot be mapped into memory ({})", std::strerror(errno)));

  MappedRegion* const region = take_region();
  region->lost.store(false);
  region->begin.store(reinterpret_cast<uintptr_t>(begin));
  region->end.store((reinterpret_cast<uintptr_t>(begin) + size + page_size - 1) & ~(page_size - 1));
  return std::shared_ptr<const MappedFile>(new MappedFile(
      path, std::exchange(file.fd, -1), status, {static_cast<const std::byte*>(begin), size}, region));
}

MappedFile::MappedFile(std::string path, int descriptor, const struct stat& status,
                       std::span<const std::byte> bytes, MappedRegion* region)
    : path_(std::move(path)),
      descriptor_(descriptor),
      written_(status.st_mtim),
      bytes_(bytes),
      region_(region) {}

MappedFile::~MappedFile() {
  region_->end.store(0);
  region_->begin.store(0);
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  close(descriptor_);
  region_->taken.store(false);
}

void MappedFile::release(std::span<const std::byte> part) const {
  const auto file_begin = reinterpret_cast<uintptr_t>(bytes_.data());
  const auto part_begin = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t begin = (part_begin + page_size - 1) & ~(page_size - 1);
  const uintptr_t end = (part_begin + part.size()) & ~(page_size - 1);
  if (part_begin < file_begin || part_begin + part.size() > file_begin + bytes_.size() || begin >= end)
    return;
  // Advice: a kernel that refuses it only keeps the pages longer.
  madvise(const_cast<std::byte*>(bytes_.data()) + (begin - file_begin), end - begin, MADV_DONTNEED);
}

void MappedFile::check_intact() const {
  struct stat status {};
  const bool is_known = fstat(descriptor_, &status) == 0;
  if (region_->lost.load() || (is_known && size_t(status.st_size) < bytes_.size()))
    throw file_error(path_, "lost bytes while it was read: it was shortened, or its disk failed",
                     "run again when nothing else writes the file");
  if (is_known && (status.st_mtim.tv_sec != written_.tv_sec || status.st_mtim.tv_nsec != written_.tv_nsec))
    throw file_error(path_, "was written to while it was read",
                     "run again when nothing else writes the file");
}

}  // namespace kveval
