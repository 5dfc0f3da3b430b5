#include "engine/spine/spine_load.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "engine/format/digest.h"
#include "engine/format/spine_cache.h"

namespace mk {
namespace {

// Digest of where every value of the file lies in the spine, and as what.
class LayoutDigest {
 public:
  explicit LayoutDigest(const std::byte* base) : base_(base) {}

  void Add(const SpinePiece& piece) {
    Number(static_cast<uint64_t>(piece.kind));
    Tensor(piece.tensor);
    Tensor(piece.factor);
    Number(piece.first);
    Number(piece.count);
    Number(piece.cols);
    Number(static_cast<uint64_t>(piece.packing));
    Place(piece.destination);
    Number(piece.destination_row);
    Place(piece.second);
  }
  std::string Hex() const { return digest_.Hex(); }

 private:
  void Number(uint64_t value) { digest_.Update(std::as_bytes(std::span(&value, 1))); }
  void Tensor(const TensorEntry* tensor) {
    const std::string_view name = tensor == nullptr ? std::string_view() : tensor->name;
    Number(name.size());
    digest_.Update(std::as_bytes(std::span(name)));
  }
  void Place(std::span<const std::byte> place) {
    Number(place.size());
    if (!place.empty()) Number(static_cast<uint64_t>(place.data() - base_));
  }

  const std::byte* base_;
  Xxh3Digest digest_;
};

SpineKey KeyOf(const SpineSource& source, const SpinePlan& plan, const std::byte* base) {
  LayoutDigest digest(base);
  for (const SpinePiece& piece : plan.pieces) digest.Add(piece);
  SpineKey key;
  key.fingerprint = source.fingerprint;
  key.form = PrecisionName(source.precision);
  key.version = source.version;
  key.layout = digest.Hex();
  key.model_bytes = source.file.identity().size;
  key.model_mtime_ns = source.file.identity().mtime_ns;
  key.bytes = plan.bytes;
  return key;
}

// Reads and checks every block. Progress counts what the load would have read instead.
Status ReadKept(const SpineFile& kept, const SpinePlan& plan, std::span<std::byte> memory,
                ThreadPool& pool, LoadProgress& progress) {
  const double scale = static_cast<double>(plan.read_bytes) / static_cast<double>(memory.size());
  return pool.ParallelFor(kept.blocks(), [&](size_t index, size_t worker) -> Status {
    const Result<size_t> read = kept.ReadBlock(index, memory);
    if (!read) return Fail(read.error());
    return progress.Add(static_cast<uint64_t>(static_cast<double>(*read) * scale), worker);
  });
}

}  // namespace

Result<SpineOutcome> FillSpine(const SpineSource& source, const SpinePlan& plan,
                               std::span<std::byte> memory, const SpineCacheOptions& cache,
                               ThreadPool& pool, LoadProgress& progress) {
  SpineOutcome outcome;
  if (source.precision != Precision::kExact && cache.Wants(plan.bytes)) {
    outcome.keep = KeyOf(source, plan, memory.data());
    if (const std::optional<SpineFile> kept = FindSpine(cache, *outcome.keep)) {
      const Status read = ReadKept(*kept, plan, memory, pool, progress);
      if (!read && read.error().code == ErrorCode::kCancelled) return Fail(read.error());
      outcome.cached = read.has_value();
      if (!read) {
        if (cache.log) cache.log("the prepared weights are made anew: " + read.error().message);
        // What the pieces do not fill is padding that kernels read as zeros.
        std::memset(memory.data(), 0, memory.size());
      }
    }
  }
  if (outcome.cached) {
    outcome.keep.reset();
  } else if (Status read = ReadPieces(source.file, plan.pieces, pool, progress); !read) {
    return Fail(read.error());
  }
  return outcome;
}

}  // namespace mk
