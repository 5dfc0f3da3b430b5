#include "engine/plan/disk_probe.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "engine/base/atomic_file.h"
#include "engine/base/file.h"
#include "engine/parallel/page_buffer.h"

namespace mk {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kLargeRead = uint64_t{1} << 20;
constexpr size_t kSmallReads = 64;
constexpr uint64_t kLargeBytes = uint64_t{256} << 20;
constexpr auto kMostTime = std::chrono::milliseconds(600);  // of each half
constexpr uint64_t kFileBytes = uint64_t{64} << 20;
constexpr size_t kBufferBytes = size_t{2} << 20;  // of a reader; aligned to as much

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Probe {
 public:
  Probe(std::string path, size_t depth, const std::function<bool()>& go_on)
      : path_(std::move(path)), depth_(depth), go_on_(go_on) {}

  Result<DiskProbe> Run() {
    if (Status opened = Open(); !opened) return Fail(opened.error());
    Result<double> small = SmallRead();
    if (!small) return Fail(small.error());
    Result<double> rate = LargeReads();
    if (!rate) return Fail(rate.error());
    probe_.timing.depth = depth_;
    probe_.timing.bytes_per_s = *rate;
    probe_.timing.latency_s =
        std::max(0.0, *small - static_cast<double>(std::min(kBlock, size_)) / *rate);
    return probe_;
  }

 private:
  Status Open() {
    Result<OpenedFile> file = OpenForReading(path_);
    if (!file) return Fail(file.error());
    size_ = file->identity.size;
    probe_.device = file->identity.device;
    if (size_ == 0) {
      return Fail(ErrorCode::kInvalidArgument, path_ + " is empty: nothing can be read from it");
    }
    fd_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    probe_.direct = static_cast<bool>(fd_);
    if (!fd_) {
      fd_ = std::move(file->fd);
      // What can be done against the page cache.
      ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
      ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_RANDOM);
    }
    return {};
  }

  // Reads at a random multiple of a block; the end of the file may cut it short. Returns the bytes.
  Result<uint64_t> ReadSomewhere(uint64_t bytes, std::minstd_rand& random, std::byte* buffer) {
    const uint64_t room = size_ > bytes ? (size_ - bytes) / kBlock + 1 : 1;
    const uint64_t offset = (uint64_t{random()} << 31 ^ random()) % room * kBlock;
    ssize_t got = 0;
    do {
      got = ::pread(fd_.get(), buffer, bytes, static_cast<off_t>(offset));
    } while (got < 0 && errno == EINTR);
    if (got < 0) return Fail(SystemError(errno, "read", path_));
    if (got == 0) return Fail(ErrorCode::kCorrupt, path_ + " was cut while it was read");
    return static_cast<uint64_t>(got);
  }

  bool GoesOn(Clock::time_point start) const {
    return Clock::now() - start < kMostTime && (!go_on_ || go_on_());
  }

  Status Cancelled() const {
    if (!go_on_ || go_on_()) return {};
    return Fail(ErrorCode::kCancelled, "the measurement was cancelled");
  }

  // Median seconds of a read of one block.
  Result<double> SmallRead() {
    Result<PageBuffer> buffer = PageBuffer::Allocate(kBufferBytes);
    if (!buffer) return Fail(buffer.error());
    buffer->MakeResident();
    std::minstd_rand random(1);
    std::vector<double> samples;
    const auto begin = Clock::now();
    while (samples.empty() || (samples.size() < kSmallReads && GoesOn(begin))) {
      const auto start = Clock::now();
      if (auto read = ReadSomewhere(kBlock, random, buffer->data()); !read) {
        return Fail(read.error());
      }
      samples.push_back(SecondsSince(start));
    }
    if (Status on = Cancelled(); !on) return Fail(on.error());
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    return *middle;
  }

  // Bytes per second of large reads, `depth` at once.
  Result<double> LargeReads() {
    std::vector<PageBuffer> buffers;
    std::vector<Result<uint64_t>> done(depth_, uint64_t{0});
    for (size_t i = 0; i < depth_; ++i) {
      Result<PageBuffer> buffer = PageBuffer::Allocate(kBufferBytes);
      if (!buffer) return Fail(buffer.error());
      buffer->MakeResident();
      buffers.push_back(std::move(*buffer));
    }
    std::atomic<uint64_t> asked = 0;
    const auto start = Clock::now();
    std::vector<std::thread> readers;
    for (size_t i = 0; i < depth_; ++i) {
      readers.emplace_back([&, i] {
        std::minstd_rand random(static_cast<uint32_t>(i + 2));
        while (done[i] && asked.fetch_add(kLargeRead) < kLargeBytes && GoesOn(start)) {
          Result<uint64_t> read = ReadSomewhere(kLargeRead, random, buffers[i].data());
          done[i] = read ? Result<uint64_t>(*done[i] + *read) : read;
        }
      });
    }
    for (std::thread& reader : readers) reader.join();
    const double seconds = SecondsSince(start);
    if (Status on = Cancelled(); !on) return Fail(on.error());
    uint64_t bytes = 0;
    for (const Result<uint64_t>& one : done) {
      if (!one) return Fail(one.error());
      bytes += *one;
    }
    return std::max(1.0, static_cast<double>(bytes) / seconds);
  }

  const std::string path_;
  const size_t depth_;
  const std::function<bool()>& go_on_;
  UniqueFd fd_;
  uint64_t size_ = 0;
  DiskProbe probe_;
};

}  // namespace

Result<DiskProbe> MeasureDisk(const std::string& path, size_t depth,
                              const std::function<bool()>& go_on) {
  return Probe(path, std::max<size_t>(1, depth), go_on).Run();
}

Result<DiskProbe> MeasureDiskOf(const std::string& folder, size_t depth,
                                const std::function<bool()>& go_on) {
  // Never committed: it goes away by itself.
  Result<AtomicFile> file = AtomicFile::Create(folder + "/disk-probe", 0600);
  if (!file) return Fail(file.error());
  if (Status room = file->Allocate(kFileBytes); !room) return Fail(room.error());
  std::vector<std::byte> piece(kLargeRead);
  std::minstd_rand random(3);
  for (uint64_t at = 0; at < kFileBytes; at += kLargeRead) {
    for (std::byte& byte : piece) byte = static_cast<std::byte>(random() >> 8);
    if (Status put = file->WriteAt(at, piece); !put) return Fail(put.error());
  }
  if (::fdatasync(file->fd()) != 0) return Fail(SystemError(errno, "sync", file->temp_path()));
  return MeasureDisk(file->temp_path(), depth, go_on);
}

}  // namespace mk
