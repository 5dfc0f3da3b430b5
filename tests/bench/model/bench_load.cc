// Time that a load takes, with and without a folder of prepared spines, next to the time that it
// takes to read the model file:
//   bench_load MODEL PRECISION THREADS [--cold]
//
// Loads of both kinds alternate; medians and the fastest are printed. Warm: everything is in the
// page cache. Cold: the model file and the spine are dropped from it before every load (whether the
// disk below has a cache of its own is not in our hands).

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/file.h"
#include "engine/kernels/target.h"
#include "engine/model/model.h"
#include "engine/parallel/page_buffer.h"
#include "engine/parallel/thread_pool.h"

namespace mk {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRounds = 5;
constexpr size_t kChunk = size_t{4} << 20;

int Refuse(const std::string& problem) {
  std::fprintf(stderr, "bench_load: %s\n", problem.c_str());
  return 1;
}

class Times {
 public:
  void Add(double seconds) { seconds_.push_back(seconds); }
  void Print(const char* what, uint64_t bytes) {
    std::sort(seconds_.begin(), seconds_.end());
    const double median = seconds_[seconds_.size() / 2];
    const double fastest = seconds_.front();
    std::printf("%-34s %8.3f s %8.3f s %9.1f MB %6.2f GB/s\n", what, median, fastest,
                static_cast<double>(bytes) * 1e-6, static_cast<double>(bytes) * 1e-9 / median);
  }

 private:
  std::vector<double> seconds_;
};

template <typename F>
Result<double> TimeOf(F&& work) {
  const auto start = std::chrono::steady_clock::now();
  if (Status done = work(); !done) return Fail(done.error());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Drops the pages of a file from the page cache.
void Forget(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd) (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
}

class Bench {
 public:
  Bench(std::string path, Precision precision, int threads, bool cold)
      : path_(std::move(path)), cold_(cold) {
    options_.precision = precision;
    options_.threads = threads;
    options_.spine_cache.smallest = 0;
    options_.spine_cache.log = [this](std::string_view line) {
      told_ = true;
      std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
    };
  }

  Status Run(const std::string& directory) {
    if (Status written = WriteSpine(directory); !written) return written;
    Times read, without, with;
    for (size_t round = 0; round < kRounds; ++round) {
      if (Status status = Once(read, [&] { return ReadFile(); }); !status) return status;
      if (Status status = Once(without, [&] { return Load({}); }); !status) return status;
      if (spine_.empty()) continue;
      if (Status status = Once(with, [&] { return Load(directory); }); !status) return status;
    }
    const uint64_t file = fs::file_size(path_);
    std::printf("%-34s %10s %10s %12s\n", "", "median", "fastest", "bytes");
    read.Print("read the file", file);
    without.Print("load", file);
    if (spine_.empty()) {
      std::printf("no spine is kept for %s\n", PrecisionName(options_.precision).data());
    } else {
      with.Print("load with a prepared spine", file);
      std::printf("the spine has %.1f MB\n", static_cast<double>(fs::file_size(spine_)) * 1e-6);
    }
    return {};
  }

 private:
  template <typename F>
  Status Once(Times& times, F&& work) {
    if (cold_) {
      Forget(path_);
      if (!spine_.empty()) Forget(spine_);
    }
    const Result<double> seconds = TimeOf(work);
    if (!seconds) return Fail(seconds.error());
    times.Add(*seconds);
    return {};
  }

  // Loads once and waits until the spine is written.
  Status WriteSpine(const std::string& directory) {
    options_.spine_cache.directory = directory;
    const auto model = LoadModel(path_, options_);
    if (!model) return Fail(model.error());
    if (options_.precision == Precision::kExact) return {};
    while (!told_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    for (const auto& entry : fs::directory_iterator(directory)) spine_ = entry.path().string();
    if (!spine_.empty()) return {};
    return Fail(ErrorCode::kIo, "the prepared spine was not written to " + directory);
  }

  Status Load(const std::string& directory) {
    options_.spine_cache.directory = directory;
    const auto model = LoadModel(path_, options_);
    if (!model) return Fail(model.error());
    if ((*model)->spine_cached(options_.precision) == !directory.empty()) return {};
    return Fail(ErrorCode::kInternal, "the prepared spine was not used");
  }

  // All bytes, by as many threads as load, to buffers that stay.
  Status ReadFile() {
    auto pool = ThreadPool::Create(static_cast<size_t>(options_.threads));
    if (!pool) return Fail(pool.error());
    const auto file = OpenForReading(path_);
    if (!file) return Fail(file.error());
    auto buffer = PageBuffer::Allocate((*pool)->size() * kChunk);
    if (!buffer) return Fail(buffer.error());
    const uint64_t size = file->identity.size;
    return (*pool)->ParallelFor((size + kChunk - 1) / kChunk, [&](size_t i, size_t worker) {
      const uint64_t begin = i * kChunk;
      const std::span<std::byte> room(buffer->data() + worker * kChunk,
                                      std::min<uint64_t>(kChunk, size - begin));
      return ReadAt(file->fd.get(), begin, room, path_);
    });
  }

  std::string path_;
  std::string spine_;
  bool cold_;
  LoadOptions options_;
  std::atomic<bool> told_{false};
};

int Run(const char* path, Precision precision, int threads, bool cold) {
  std::string directory = (fs::temp_directory_path() / "bench_load_XXXXXX").string();
  if (::mkdtemp(directory.data()) == nullptr) return Refuse("cannot create " + directory);
  std::printf("%s, %s, %d thread(s), %s, %s\n", path, PrecisionName(precision).data(), threads,
              cold ? "cold" : "warm", KernelTarget().data());
  const Status done = Bench(path, precision, threads, cold).Run(directory);
  std::error_code ignored;
  fs::remove_all(directory, ignored);
  return done ? 0 : Refuse(done.error().ToString());
}

}  // namespace
}  // namespace mk

int main(int argc, char** argv) {
  const bool cold = argc == 5 && std::strcmp(argv[4], "--cold") == 0;
  if (argc != 4 && !cold) return mk::Refuse("usage: bench_load MODEL PRECISION THREADS [--cold]");
  const auto precision = mk::ParsePrecision(argv[2]);
  if (!precision) return mk::Refuse("the precision is exact, bf16 or q8");
  int threads = 0;
  const char* end = argv[3] + std::strlen(argv[3]);
  if (std::from_chars(argv[3], end, threads).ptr != end || threads <= 0) {
    return mk::Refuse("the number of threads is a positive number");
  }
  return mk::Run(argv[1], *precision, threads, cold);
}
