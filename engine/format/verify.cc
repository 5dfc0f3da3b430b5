#include "engine/format/verify.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "engine/format/digest.h"
#include "engine/format/mkim_file.h"
#include "engine/format/mxfp4.h"
#include "engine/format/verify_checkpoint.h"

namespace mk {
namespace {

using Clock = std::chrono::steady_clock;

// A multiple of every element size; small, because the scan is given up between two chunks only.
constexpr size_t kChunkBytes = 1u << 20;

// Problems of one tensor, counted while its bytes stream by.
struct Scan {
  uint64_t bad = 0;
  uint64_t first_bad = 0;  // index of the value
  void Note(uint64_t index) {
    if (bad++ == 0) first_bad = index;
  }
};

bool IsFiniteBits(uint32_t bits) {
  return (bits & 0x7f800000u) != 0x7f800000u;
}

class Verifier {
 public:
  Verifier(std::shared_ptr<const MkimFile> file, const VerifyOptions& options)
      : file_(std::move(file)), options_(options), buffer_(kChunkBytes), saved_(Clock::now()) {}

  Result<VerifyReport> Run() {
    const auto tensors = file_->tensors();
    report_.file_bytes = file_->identity().size;
    report_.tensors = tensors.size();
    report_.warnings = file_->warnings();
    report_.digest_recorded = !file_->config().content_sha256.empty();
    total_bytes_ = report_.file_bytes;
    for (const TensorEntry& entry : tensors) {
      if (report_.digest_recorded) total_bytes_ += entry.size;
      by_offset_.push_back(&entry);
    }
    std::sort(by_offset_.begin(), by_offset_.end(),
              [](const auto* a, const auto* b) { return a->offset < b->offset; });
    if (!options_.checkpoint.empty()) Resume();
    Status status = scanned_ ? Status() : ScanFile();
    if (status && report_.digest_recorded) status = HashContents();
    if (status) status = file_->Unchanged();
    if (!status) return Fail(status.error());
    return std::move(report_);
  }

 private:
  void AddProblem(std::string tensor, std::string message, uint64_t count) {
    ++report_.problems_total;
    if (report_.problems.size() < VerifyReport::kMaxProblems) {
      report_.problems.push_back({std::move(tensor), std::move(message), count});
    }
  }

  // Takes over what an earlier scan of this very file found.
  void Resume() {
    auto from = VerifyCheckpoint::Decode(options_.checkpoint);
    if (!from || from->identity != file_->identity() || from->next > by_offset_.size()) return;
    const auto fingerprint = file_->Fingerprint();
    if (!fingerprint || *fingerprint != from->fingerprint) return;
    const bool restored =
        from->scanned ? sha256_.Restore(from->digest) : xxh3_.Restore(from->digest);
    if (!restored) return;
    scanned_ = from->scanned;
    next_ = from->next;
    report_.values_checked = from->report.values_checked;
    report_.xxh3_128 = std::move(from->report.xxh3_128);
    report_.problems = std::move(from->report.problems);
    report_.problems_total = from->report.problems_total;
    done_bytes_ = scanned_ ? report_.file_bytes : EndOfScanned();
    for (size_t i = 0; scanned_ && i < next_; ++i) done_bytes_ += file_->tensors()[i].size;
    report_.resumed_bytes = done_bytes_;
  }

  // Tells how to go on from here, if that was not told a short while ago.
  void Save() {
    if (!options_.save || Clock::now() - saved_ < options_.save_interval) return;
    if (fingerprint_.empty()) fingerprint_ = file_->Fingerprint().value_or(std::string());
    if (fingerprint_.empty()) return;
    VerifyCheckpoint now;
    now.identity = file_->identity();
    now.fingerprint = fingerprint_;
    now.scanned = scanned_;
    now.next = next_;
    now.digest = scanned_ ? sha256_.Save() : xxh3_.Save();
    now.report = report_;
    options_.save(now.Encode());
    saved_ = Clock::now();
  }

  // First byte behind the tensors that the first pass has looked at.
  uint64_t EndOfScanned() const {
    if (next_ == 0) return file_->data_start();
    const TensorEntry& last = *by_offset_[next_ - 1];
    return last.offset + last.size;
  }

  // The whole file in order of offset, header and padding included.
  Status ScanFile() {
    Status status;
    if (done_bytes_ == 0) {
      status = Stream(0, file_->data_start(), [](uint64_t, std::span<const std::byte>) {});
    }
    while (status && next_ < by_offset_.size()) {
      const TensorEntry& entry = *by_offset_[next_];
      status = ScanPadding(EndOfScanned(), entry.offset);
      if (status) status = ScanTensor(entry);
      if (!status) return status;
      ++next_;
      Save();
    }
    if (status) status = ScanPadding(EndOfScanned(), report_.file_bytes);
    if (!status) return status;
    report_.xxh3_128 = xxh3_.Hex();
    scanned_ = true;
    next_ = 0;
    return {};
  }

  // Reads [begin, end), hashes it and hands it to `look` with its offset from `begin`.
  template <typename Look>
  Status Stream(uint64_t begin, uint64_t end, Look&& look) {
    for (uint64_t at = begin; at < end;) {
      const uint64_t bytes = std::min<uint64_t>(kChunkBytes, end - at);
      const auto chunk = std::span(buffer_).first(bytes);
      const Status read = ReadAt(file_->fd(), at, chunk, file_->path());
      if (!read) return read;
      xxh3_.Update(chunk);
      look(at - begin, chunk);
      at += bytes;
      const Status going = Advance(bytes);
      if (!going) return going;
    }
    return {};
  }

  Status Advance(uint64_t bytes) {
    done_bytes_ += bytes;
    if (!options_.progress || options_.progress(done_bytes_, total_bytes_)) return {};
    return Fail(ErrorCode::kCancelled, "verification of " + file_->path() + " was cancelled");
  }

  Status ScanPadding(uint64_t begin, uint64_t end) {
    Scan scan;
    const Status status =
        Stream(begin, end, [&scan](uint64_t offset, std::span<const std::byte> bytes) {
          for (size_t i = 0; i < bytes.size(); ++i) {
            if (bytes[i] != std::byte{0}) scan.Note(offset + i);
          }
        });
    if (status && scan.bad > 0) {
      AddProblem("", "padding at byte " + std::to_string(begin + scan.first_bad) + " is not zero",
                 scan.bad);
    }
    return status;
  }

  Status ScanTensor(const TensorEntry& entry) {
    switch (entry.dtype) {
      case DType::kF32:
        return ScanF32(entry);
      case DType::kBf16:
        return ScanBf16(entry);
      case DType::kMxfp4:
      case DType::kMxfp4Sq:
        return ScanMxfp4(entry);
      case DType::kI32:
      case DType::kVq1:
        break;  // every value is valid: a codebook has 256 entries
    }
    report_.values_checked += entry.dtype == DType::kI32 ? entry.elements() : entry.size;
    return Stream(entry.offset, entry.offset + entry.size,
                  [](uint64_t, std::span<const std::byte>) {});
  }

  Status ScanF32(const TensorEntry& entry) {
    Scan scan;
    const Status status = Stream(entry.offset, entry.offset + entry.size,
                                 [&scan](uint64_t offset, std::span<const std::byte> bytes) {
                                   for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
                                     uint32_t bits = 0;
                                     std::memcpy(&bits, bytes.data() + i, sizeof bits);
                                     if (!IsFiniteBits(bits)) scan.Note((offset + i) / 4);
                                   }
                                 });
    FinishFloats(entry, scan);
    return status;
  }

  Status ScanBf16(const TensorEntry& entry) {
    Scan scan;
    const Status status = Stream(entry.offset, entry.offset + entry.size,
                                 [&scan](uint64_t offset, std::span<const std::byte> bytes) {
                                   for (size_t i = 0; i + 2 <= bytes.size(); i += 2) {
                                     uint16_t half = 0;
                                     std::memcpy(&half, bytes.data() + i, sizeof half);
                                     if (!IsFiniteBits(uint32_t{half} << 16)) {
                                       scan.Note((offset + i) / 2);
                                     }
                                   }
                                 });
    FinishFloats(entry, scan);
    return status;
  }

  void FinishFloats(const TensorEntry& entry, const Scan& scan) {
    report_.values_checked += entry.elements();
    if (scan.bad == 0) return;
    AddProblem(std::string(entry.name),
               "value " + std::to_string(scan.first_bad) + " is not finite", scan.bad);
  }

  Status ScanMxfp4(const TensorEntry& entry) {
    const uint64_t packed = entry.elements() / 2;
    const uint64_t scales = entry.elements() / 32;
    const bool square = entry.dtype == DType::kMxfp4Sq;
    Scan scan;
    std::array<std::byte, 4> smax_bytes{};
    const Status status = Stream(
        entry.offset, entry.offset + entry.size,
        [&](uint64_t offset, std::span<const std::byte> bytes) {
          for (size_t i = offset < packed ? std::min<uint64_t>(bytes.size(), packed - offset) : 0;
               i < bytes.size(); ++i) {
            const uint64_t at = offset + i - packed;
            if (at >= scales) {
              smax_bytes[at - scales] = bytes[i];
            } else if (!square && bytes[i] == std::byte{kInvalidE8m0}) {
              scan.Note(at);
            }
          }
        });
    report_.values_checked += scales + (square ? 1 : 0);
    if (scan.bad > 0) {
      AddProblem(std::string(entry.name),
                 "scale byte " + std::to_string(scan.first_bad) + " is 255 (not a number)",
                 scan.bad);
    }
    const auto smax = std::bit_cast<float>(smax_bytes);
    if (square && !(std::isfinite(smax) && smax >= 0)) {
      AddProblem(std::string(entry.name), "smax is negative or not finite", 1);
    }
    return status;
  }

  // SHA-256 over the blobs in directory order.
  Status HashContents() {
    const auto tensors = file_->tensors();
    while (next_ < tensors.size()) {
      const TensorEntry& entry = tensors[next_];
      for (uint64_t at = 0; at < entry.size;) {
        const uint64_t bytes = std::min<uint64_t>(kChunkBytes, entry.size - at);
        const auto chunk = std::span(buffer_).first(bytes);
        Status status = file_->ReadBlobRange(entry, at, chunk);
        if (status) status = Advance(bytes);
        if (!status) return status;
        sha256_.Update(chunk);
        at += bytes;
      }
      ++next_;
      Save();
    }
    report_.content_sha256 = sha256_.FinishHex();
    const std::string& recorded = file_->config().content_sha256;
    if (recorded != report_.content_sha256) {
      AddProblem("",
                 "content_sha256 is " + report_.content_sha256 + ", the config records " + recorded,
                 1);
    }
    return {};
  }

  std::shared_ptr<const MkimFile> file_;
  const VerifyOptions& options_;
  std::vector<std::byte> buffer_;
  VerifyReport report_;
  // The first pass, over the whole file, goes in order of offset; the second one, if there is a
  // recorded digest, over the tensors in directory order.
  std::vector<const TensorEntry*> by_offset_;
  bool scanned_ = false;  // the first pass is done
  size_t next_ = 0;       // tensor that the pass goes on with
  Xxh3Digest xxh3_;
  Sha256Digest sha256_;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
  std::string fingerprint_;  // "": not known yet
  Clock::time_point saved_;
};

}  // namespace

Result<VerifyReport> VerifyFile(const std::string& path, const VerifyOptions& options) {
  auto file = MkimFile::Open(path);
  if (!file) return Fail(file.error());
  return Verifier(std::move(*file), options).Run();
}

}  // namespace mk
