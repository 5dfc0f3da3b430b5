#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/stream/disk_reader.h"

namespace mk {
namespace {

class PreadReader final : public DiskReader {
 public:
  PreadReader() = default;

  ~PreadReader() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // May throw std::system_error.
  void Start(size_t depth) {
    threads_.reserve(depth);
    for (size_t i = 0; i < depth; ++i) {
      threads_.emplace_back([this] { Run(); });
    }
  }

  size_t depth() const override { return threads_.size(); }

  void Submit(int fd, const DiskRead& read) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.emplace_back(fd, read);
    }
    work_.notify_one();
  }

  void Wait(std::optional<StreamClock::time_point> until, std::vector<DiskDone>& done) override {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return woken_ || !done_.empty(); };
    if (until) {
      changed_.wait_until(lock, *until, ready);
    } else {
      changed_.wait(lock, ready);
    }
    woken_ = false;
    done.insert(done.end(), done_.begin(), done_.end());
    done_.clear();
  }

  void Wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      const auto [fd, read] = queue_.front();
      queue_.pop_front();
      lock.unlock();
      const ssize_t got =
          ::pread(fd, read.buffer.data(), read.buffer.size(), static_cast<off_t>(read.offset));
      const DiskDone result{read.tag, got < 0 ? errno : 0, got < 0 ? 0 : static_cast<size_t>(got)};
      lock.lock();
      done_.push_back(result);
      changed_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;     // for threads
  std::condition_variable changed_;  // for Wait
  std::deque<std::pair<int, DiskRead>> queue_;
  std::vector<DiskDone> done_;
  bool woken_ = false;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<DiskReader>> CreatePreadReader(size_t depth) {
  auto reader = std::make_unique<PreadReader>();
  try {
    reader->Start(depth);
  } catch (const std::system_error& error) {
    return Fail(ErrorCode::kIo, std::string("cannot start threads that read: ") + error.what(),
                "raise the limit of processes (ulimit -u)");
  }
  return reader;
}

}  // namespace mk
