// ExpertFetcher: the thread that reads experts from the file and prepares them for kernels.
//
// What to read next, and what becomes of it, is its owner's business (FetchOwner). Reads run past
// the page cache where the file system allows it. A read that is interrupted is repeated, one that
// comes short is continued, one that fails is tried three times in all; what fails for good is an
// error of the experts in it, never zeros.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/base/unique_fd.h"
#include "engine/stream/block_pool.h"
#include "engine/stream/disk_reader.h"
#include "engine/stream/expert_table.h"
#include "engine/stream/read_plan.h"

namespace mk {

// An expert in memory, in the form that kernels read.
struct ExpertValue {
  std::byte* memory = nullptr;  // ExpertRecord::value_bytes
  ExpertWeights weights;
};

// Called on the fetcher's thread, without any lock of the fetcher.
class FetchOwner {
 public:
  // Appends experts to read now, different ones that are not being read, of about `bytes` in the
  // file altogether; all of one call may share reads. Nothing: there is nothing to do.
  virtual void NextReads(uint64_t bytes, std::vector<ExpertKey>& keys) = 0;
  // Memory for an expert that is about to be read. kOutOfMemory.
  virtual Result<std::byte*> TakeMemory(ExpertKey key) = 0;
  // An expert has come. The memory is the owner's again, also when it failed (null if there was
  // none).
  virtual void Landed(ExpertKey key, const ExpertValue& value, const Status& status) = 0;

 protected:
  ~FetchOwner() = default;
};

struct FetchOptions {
  ReadPlanOptions plan;
  bool direct = true;            // past the page cache, where that works
  uint64_t bytes_in_flight = 0;  // of reads under way at once; one read may be larger
};

// What has been read so far. Relaxed counters, for any thread.
struct FetchCounters {
  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> bytes{0};    // that came from the file, with padding and holes
  std::atomic<uint64_t> failed{0};   // reads that failed for good
  std::atomic<uint64_t> busy_ns{0};  // sum of the times from submission to completion
  std::atomic<bool> direct{false};   // whether reads go past the page cache
};

class ExpertFetcher {
 public:
  // The file, the table and the owner outlive it. `codebook`: of VQ1 experts, or null.
  ExpertFetcher(const MkimFile& file, const ExpertTable& table, const float* codebook,
                std::unique_ptr<DiskReader> reader, const FetchOptions& options, FetchOwner& owner);
  // Waits for reads that are under way.
  ~ExpertFetcher();
  ExpertFetcher(const ExpertFetcher&) = delete;
  ExpertFetcher& operator=(const ExpertFetcher&) = delete;

  // kIo when the thread cannot be started.
  Status Start();
  // There is something new in NextReads. Any thread.
  void Wake() { reader_->Wake(); }
  const FetchCounters& counters() const { return counters_; }

 private:
  // A read under way. The buffer starts at `io_offset`, at most a block before the payload.
  struct Active {
    PlannedRead plan;
    uint64_t io_offset = 0;
    size_t io_bytes = 0;
    size_t got = 0;  // bytes of the buffer that have come
    std::byte* buffer = nullptr;
    size_t buffer_bytes = 0;
    int tries = 0;
    bool direct = false;
    StreamClock::time_point started;
  };
  // An expert whose parts have not all come yet.
  struct Landing {
    ExpertValue value;
    size_t parts_left = kExpertParts;
    Status status;
  };

  void Run();
  void PlanMore();
  void SubmitPlanned();
  void Begin(PlannedRead plan);
  void Issue(size_t slot);
  void Finish(const DiskDone& done);
  // Whether the read goes on.
  bool Continue(size_t slot, const DiskDone& done);
  Status ReadError(const Active& read, const DiskDone& done);
  void Complete(Active& read);
  void Settle(const PlannedRead& plan, const Status& status);
  void SettlePiece(const ReadPiece& piece, const Status& status);
  void OpenDirect();

  const MkimFile& file_;
  const ExpertTable& table_;
  const float* const codebook_;
  const std::unique_ptr<DiskReader> reader_;
  const FetchOptions options_;
  FetchOwner& owner_;
  UniqueFd direct_fd_;
  BlockPool buffers_;
  std::vector<Active> active_;  // [depth], by slot
  std::vector<size_t> free_slots_;
  uint64_t active_bytes_ = 0;
  std::deque<PlannedRead> planned_;
  std::unordered_map<ExpertKey, Landing> landing_;
  std::vector<ExpertKey> keys_;
  std::vector<DiskDone> done_;
  FetchCounters counters_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace mk
