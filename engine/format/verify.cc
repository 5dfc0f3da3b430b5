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

namespace mk {
namespace {

constexpr size_t kChunkBytes = 4u << 20;  // a multiple of every element size

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
  Verifier(std::shared_ptr<const MkimFile> file, const std::function<bool(double)>& progress)
      : file_(std::move(file)), progress_(progress), buffer_(kChunkBytes) {}

  Result<VerifyReport> Run() {
    report_.file_bytes = file_->identity().size;
    report_.tensors = file_->tensors().size();
    report_.warnings = file_->warnings();
    report_.digest_recorded = !file_->config().content_sha256.empty();
    Status status = ScanFile();
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

  // The whole file in order of offset, header and padding included.
  Status ScanFile() {
    const auto tensors = file_->tensors();
    std::vector<uint32_t> order(tensors.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return tensors[a].offset < tensors[b].offset; });
    Status status = Stream(0, file_->data_start(), [](uint64_t, std::span<const std::byte>) {});
    uint64_t position = file_->data_start();
    for (const uint32_t index : order) {
      const TensorEntry& entry = tensors[index];
      if (status) status = ScanPadding(position, entry.offset);
      if (status) status = ScanTensor(entry);
      if (!status) return status;
      position = entry.offset + entry.size;
    }
    if (status) status = ScanPadding(position, report_.file_bytes);
    if (status) report_.xxh3_128 = digest_.Hex();
    return status;
  }

  // Reads [begin, end), hashes it and hands it to `look` with its offset from `begin`.
  template <typename Look>
  Status Stream(uint64_t begin, uint64_t end, Look&& look) {
    for (uint64_t at = begin; at < end;) {
      const uint64_t bytes = std::min<uint64_t>(kChunkBytes, end - at);
      const auto chunk = std::span(buffer_).first(bytes);
      const Status read = ReadAt(file_->fd(), at, chunk, file_->path());
      if (!read) return read;
      digest_.Update(chunk);
      look(at - begin, chunk);
      at += bytes;
      const Status going = Advance(bytes);
      if (!going) return going;
    }
    return {};
  }

  // With a recorded digest the file is read twice: in order of offset, then in directory order.
  Status Advance(uint64_t bytes) {
    done_bytes_ += bytes;
    if (!progress_ || done_bytes_ < next_report_) return {};
    next_report_ = done_bytes_ + 16 * kChunkBytes;
    const double passes = report_.digest_recorded ? 2.0 : 1.0;
    const double total = passes * static_cast<double>(report_.file_bytes);
    if (progress_(std::min(1.0, static_cast<double>(done_bytes_) / total))) return {};
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
    Sha256Digest digest;
    for (const TensorEntry& entry : file_->tensors()) {
      for (uint64_t at = 0; at < entry.size;) {
        const uint64_t bytes = std::min<uint64_t>(kChunkBytes, entry.size - at);
        const auto chunk = std::span(buffer_).first(bytes);
        Status status = file_->ReadBlobRange(entry, at, chunk);
        if (status) status = Advance(bytes);
        if (!status) return status;
        digest.Update(chunk);
        at += bytes;
      }
    }
    report_.content_sha256 = digest.FinishHex();
    const std::string& recorded = file_->config().content_sha256;
    if (!recorded.empty() && recorded != report_.content_sha256) {
      AddProblem("",
                 "content_sha256 is " + report_.content_sha256 + ", the config records " + recorded,
                 1);
    }
    return {};
  }

  std::shared_ptr<const MkimFile> file_;
  const std::function<bool(double)>& progress_;
  std::vector<std::byte> buffer_;
  VerifyReport report_;
  Xxh3Digest digest_;
  uint64_t done_bytes_ = 0;
  uint64_t next_report_ = 0;
};

}  // namespace

Result<VerifyReport> VerifyFile(const std::string& path,
                                const std::function<bool(double)>& progress) {
  auto file = MkimFile::Open(path);
  if (!file) return Fail(file.error());
  return Verifier(std::move(*file), progress).Run();
}

}  // namespace mk
