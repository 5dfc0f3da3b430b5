#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "engine/base/unique_fd.h"
#include "engine/stream/disk_reader.h"

namespace mk {
namespace {

constexpr uint64_t kWakeTag = ~uint64_t{0};

class UringReader final : public DiskReader {
 public:
  UringReader() = default;
  ~UringReader() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  Status Open(size_t depth) {
    // Two more: the read that Wake completes, and a timeout on older kernels.
    const int made = io_uring_queue_init(static_cast<unsigned>(depth) + 2, &ring_, 0);
    if (made < 0) {
      return Fail(ErrorCode::kUnsupported,
                  std::string("io_uring is not to be had: ") + std::strerror(-made),
                  "pread is used instead");
    }
    open_ = true;
    depth_ = depth;
    wake_.Reset(::eventfd(0, EFD_CLOEXEC));
    if (!wake_) return Fail(ErrorCode::kIo, std::string("eventfd: ") + std::strerror(errno));
    WatchWake();
    return {};
  }

  size_t depth() const override { return depth_; }

  void Submit(int fd, const DiskRead& read) override {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    io_uring_prep_read(sqe, fd, read.buffer.data(), static_cast<unsigned>(read.buffer.size()),
                       read.offset);
    io_uring_sqe_set_data64(sqe, read.tag);
    unsubmitted_ = true;
  }

  void Wait(std::optional<StreamClock::time_point> until, std::vector<DiskDone>& done) override {
    if (unsubmitted_) io_uring_submit(&ring_);
    unsubmitted_ = false;
    io_uring_cqe* cqe = nullptr;
    if (until) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::max(*until - StreamClock::now(), StreamClock::duration::zero()))
                            .count();
      __kernel_timespec time{left / 1'000'000'000, left % 1'000'000'000};
      io_uring_wait_cqe_timeout(&ring_, &cqe, &time);
    } else {
      io_uring_wait_cqe(&ring_, &cqe);
    }
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      const uint64_t tag = io_uring_cqe_get_data64(cqe);
      const int result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (tag == kWakeTag) {
        WatchWake();
      } else {
        done.push_back(
            {tag, result < 0 ? -result : 0, result < 0 ? 0 : static_cast<size_t>(result)});
      }
    }
  }

  void Wake() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

 private:
  // A read of the event that ends with the next Wake.
  void WatchWake() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    io_uring_prep_read(sqe, wake_.get(), &count_, sizeof count_, 0);
    io_uring_sqe_set_data64(sqe, kWakeTag);
    io_uring_submit(&ring_);
  }

  io_uring ring_{};
  bool open_ = false;
  bool unsubmitted_ = false;
  size_t depth_ = 0;
  UniqueFd wake_;
  uint64_t count_ = 0;
};

}  // namespace

Result<std::unique_ptr<DiskReader>> CreateUringReader(size_t depth) {
  auto reader = std::make_unique<UringReader>();
  if (Status opened = reader->Open(depth); !opened) return Fail(opened.error());
  return reader;
}

}  // namespace mk
