#include "engine/stream/expert_fetcher.h"

#include <fcntl.h>
#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "engine/base/file.h"

namespace mk {
namespace {

// What reads past the page cache are aligned to: enough for every disk in use.
constexpr uint64_t kBlock = 4096;
constexpr size_t kSmallestBuffer = size_t{16} << 10;
constexpr int kTries = 3;

uint64_t RoundDown(uint64_t value) {
  return value / kBlock * kBlock;
}

uint64_t RoundUp(uint64_t value) {
  return RoundDown(value + kBlock - 1);
}

}  // namespace

ExpertFetcher::ExpertFetcher(const MkimFile& file, const ExpertTable& table, const float* codebook,
                             std::unique_ptr<DiskReader> reader, const FetchOptions& options,
                             FetchOwner& owner)
    : file_(file),
      table_(table),
      codebook_(codebook),
      reader_(std::move(reader)),
      options_(options),
      owner_(owner),
      active_(reader_->depth()) {
  for (size_t slot = active_.size(); slot > 0; --slot) free_slots_.push_back(slot - 1);
  if (options_.direct) OpenDirect();
  counters_.direct = static_cast<bool>(direct_fd_);
}

ExpertFetcher::~ExpertFetcher() {
  if (!thread_.joinable()) return;
  stop_ = true;
  reader_->Wake();
  thread_.join();
}

Status ExpertFetcher::Start() {
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return Fail(ErrorCode::kIo,
                std::string("cannot start the thread that reads experts: ") + error.what(),
                "raise the limit of processes (ulimit -u)");
  }
  pthread_setname_np(thread_.native_handle(), "mk-experts");
  return {};
}

// The same file once more, also when its name is somebody else's by now.
void ExpertFetcher::OpenDirect() {
  const std::string self = "/proc/self/fd/" + std::to_string(file_.fd());
  direct_fd_.Reset(::open(self.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
}

void ExpertFetcher::Run() {
  for (;;) {
    if (!stop_) {
      PlanMore();
      SubmitPlanned();
    }
    if (stop_ && free_slots_.size() == active_.size()) break;
    done_.clear();
    reader_->Wait(std::nullopt, done_);
    for (const DiskDone& done : done_) Finish(done);
  }
  const Status ended = Fail(ErrorCode::kCancelled, file_.path() + ": the model is being unloaded");
  for (const PlannedRead& plan : planned_) Settle(plan, ended);
}

// Asks the owner for work while there is room, once what was planned is under way.
void ExpertFetcher::PlanMore() {
  if (!planned_.empty() || free_slots_.empty() || active_bytes_ >= options_.bytes_in_flight) return;
  keys_.clear();
  owner_.NextReads(options_.bytes_in_flight - active_bytes_, keys_);
  for (PlannedRead& read : PlanReads(table_, keys_, options_.plan)) {
    planned_.push_back(std::move(read));
  }
}

void ExpertFetcher::SubmitPlanned() {
  while (!planned_.empty() && !free_slots_.empty()) {
    if (active_bytes_ > 0 && active_bytes_ + planned_.front().bytes > options_.bytes_in_flight) {
      return;
    }
    PlannedRead plan = std::move(planned_.front());
    planned_.pop_front();
    Begin(std::move(plan));
    if (planned_.empty()) PlanMore();
  }
}

// Memory for the experts of a read that have none yet, and a buffer; then the read is on its way.
void ExpertFetcher::Begin(PlannedRead plan) {
  for (const ReadPiece& piece : plan.pieces) {
    const auto [at, first] = landing_.try_emplace(piece.key);
    if (!first) continue;
    Result<std::byte*> memory = owner_.TakeMemory(piece.key);
    if (memory) {
      at->second.value.memory = *memory;
    } else {
      at->second.status = Fail(memory.error());
    }
  }
  Active read;
  read.direct = counters_.direct.load(std::memory_order_relaxed);
  read.io_offset = read.direct ? RoundDown(plan.offset) : plan.offset;
  read.io_bytes =
      static_cast<size_t>((read.direct ? RoundUp(plan.end()) : plan.end()) - read.io_offset);
  read.buffer_bytes = std::bit_ceil(std::max(read.io_bytes, kSmallestBuffer));
  Result<std::byte*> buffer = buffers_.Take(read.buffer_bytes);
  if (!buffer) {
    Settle(plan, Fail(buffer.error()));
    return;
  }
  read.buffer = *buffer;
  read.plan = std::move(plan);
  read.started = StreamClock::now();
  active_bytes_ += read.plan.bytes;
  const size_t slot = free_slots_.back();
  free_slots_.pop_back();
  active_[slot] = std::move(read);
  Issue(slot);
}

// Asks for what the read still lacks.
void ExpertFetcher::Issue(size_t slot) {
  const Active& read = active_[slot];
  // After a short read the rest begins anywhere, which direct reads do not do.
  const bool direct = read.direct && read.got == 0;
  reader_->Submit(direct ? direct_fd_.get() : file_.fd(),
                  {read.io_offset + read.got,
                   {read.buffer + read.got, read.io_bytes - read.got},
                   static_cast<uint64_t>(slot)});
}

void ExpertFetcher::Finish(const DiskDone& done) {
  const auto slot = static_cast<size_t>(done.tag);
  if (Continue(slot, done)) return;
  Active& read = active_[slot];
  counters_.reads.fetch_add(1, std::memory_order_relaxed);
  counters_.bytes.fetch_add(read.got, std::memory_order_relaxed);
  counters_.busy_ns.fetch_add(
      static_cast<uint64_t>((StreamClock::now() - read.started) / std::chrono::nanoseconds(1)),
      std::memory_order_relaxed);
  if (read.io_offset + read.got >= read.plan.end()) {
    Complete(read);
  } else {
    counters_.failed.fetch_add(1, std::memory_order_relaxed);
    Settle(read.plan, ReadError(read, done));
  }
  active_bytes_ -= read.plan.bytes;
  buffers_.Give(read.buffer, read.buffer_bytes);
  read = {};
  free_slots_.push_back(slot);
}

bool ExpertFetcher::Continue(size_t slot, const DiskDone& done) {
  Active& read = active_[slot];
  if (done.error == EINTR || done.error == EAGAIN) {
    Issue(slot);
    return true;
  }
  if (done.error != 0) {
    if (read.direct && read.got == 0 && (done.error == EINVAL || done.error == EOPNOTSUPP)) {
      // The file system takes the flag but not the read: no direct reads of this file any more.
      // The descriptor stays, as other reads are under way on it.
      counters_.direct = false;
      read.direct = false;
    } else if (++read.tries >= kTries || stop_) {
      return false;
    }
    Issue(slot);
    return true;
  }
  read.got += std::min(done.bytes, read.io_bytes - read.got);
  // Past the end of the file nothing is needed, though an aligned read may ask for it.
  if (done.bytes == 0 || read.io_offset + read.got >= read.plan.end()) return false;
  Issue(slot);
  return true;
}

Status ExpertFetcher::ReadError(const Active& read, const DiskDone& done) {
  const std::string where = "experts at byte " + std::to_string(read.plan.offset);
  if (done.error != 0) return Fail(SystemError(done.error, "read " + where + " of", file_.path()));
  return Fail(ErrorCode::kCorrupt,
              file_.path() + ": the file ends at byte " +
                  std::to_string(read.io_offset + read.got) + ", before the " + where +
                  ": it was cut while the model ran",
              "restore the file and load the model again");
}

void ExpertFetcher::Complete(Active& read) {
  for (const ReadPiece& piece : read.plan.pieces) {
    Landing& landing = landing_.at(piece.key);
    Status status;
    if (landing.status) {
      status = PreparePart(file_, table_[piece.key], piece.part,
                           read.buffer + (piece.offset - read.io_offset), landing.value.memory,
                           codebook_, landing.value.weights);
    }
    SettlePiece(piece, status);
  }
}

void ExpertFetcher::Settle(const PlannedRead& plan, const Status& status) {
  for (const ReadPiece& piece : plan.pieces) SettlePiece(piece, status);
}

// A part has come or will not come. The expert lands with the last of its parts.
void ExpertFetcher::SettlePiece(const ReadPiece& piece, const Status& status) {
  const auto at = landing_.try_emplace(piece.key).first;
  Landing& landing = at->second;
  if (landing.status && !status) landing.status = status;
  if (--landing.parts_left > 0) return;
  const Landing landed = std::move(landing);
  landing_.erase(at);
  owner_.Landed(piece.key, landed.value, landed.status);
}

}  // namespace mk
