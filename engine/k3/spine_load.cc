#include "engine/k3/spine_load.h"

#include <string>
#include <string_view>
#include <utility>

#include "engine/format/digest.h"
#include "engine/format/spine_cache.h"
#include "engine/k3/spine.h"

namespace mk::k3 {
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

SpineKey KeyOf(const MkimFile& file, const SpineLayout& layout, const std::byte* base,
               Precision precision, const std::string& fingerprint) {
  LayoutDigest digest(base);
  for (const SpinePiece& piece : layout.pieces) digest.Add(piece);
  SpineKey key;
  key.fingerprint = fingerprint;
  key.form = PrecisionName(precision);
  key.version = kSpineVersion;
  key.layout = digest.Hex();
  key.model_bytes = file.identity().size;
  key.model_mtime_ns = file.identity().mtime_ns;
  key.bytes = layout.bytes;
  return key;
}

Result<SpineLayout> LayOutOverMemory(const MkimFile& file, const K3Shape& shape,
                                     Precision precision, size_t bytes) {
  Result<PageBuffer> memory = PageBuffer::Allocate(bytes);
  if (!memory) return Fail(memory.error());
  Result<SpineLayout> layout = LayOutSpine(file, shape, precision, memory->data());
  if (!layout) return Fail(layout.error());
  layout->weights.memory = std::move(*memory);
  return layout;
}

// Reads and checks every block. Progress counts what the load would have read instead.
Status ReadKept(const SpineFile& kept, const SpineLayout& layout, ThreadPool& pool,
                LoadProgress& progress) {
  const PageBuffer& memory = layout.weights.memory;
  const std::span<std::byte> spine(memory.data(), memory.size());
  const double scale = static_cast<double>(layout.read_bytes) / static_cast<double>(spine.size());
  return pool.ParallelFor(kept.blocks(), [&](size_t index, size_t worker) -> Status {
    const Result<size_t> read = kept.ReadBlock(index, spine);
    if (!read) return Fail(read.error());
    return progress.Add(static_cast<uint64_t>(static_cast<double>(*read) * scale), worker);
  });
}

}  // namespace

Result<LoadedSpine> LoadSpine(const MkimFile& file, const K3Shape& shape, Precision precision,
                              size_t bytes, const std::string& fingerprint,
                              const SpineCacheOptions& cache, ThreadPool& pool,
                              LoadProgress& progress) {
  Result<SpineLayout> layout = LayOutOverMemory(file, shape, precision, bytes);
  if (!layout) return Fail(layout.error());
  LoadedSpine spine;
  if (precision != Precision::kExact && cache.Wants(bytes)) {
    spine.keep = KeyOf(file, *layout, layout->weights.memory.data(), precision, fingerprint);
    if (const std::optional<SpineFile> kept = FindSpine(cache, *spine.keep)) {
      const Status read = ReadKept(*kept, *layout, pool, progress);
      if (!read && read.error().code == ErrorCode::kCancelled) return Fail(read.error());
      spine.cached = read.has_value();
      if (!read) {
        if (cache.log) cache.log("the prepared weights are made anew: " + read.error().message);
        // Zeroed memory again: what the pieces do not fill is padding that kernels read as zeros.
        *layout = {};
        layout = LayOutOverMemory(file, shape, precision, bytes);
        if (!layout) return Fail(layout.error());
      }
    }
  }
  if (spine.cached) {
    spine.keep.reset();
  } else if (Status read = ReadSpine(file, shape, layout->pieces, pool, progress); !read) {
    return Fail(read.error());
  }
  spine.weights = std::make_unique<const K3Weights>(std::move(layout->weights));
  return spine;
}

}  // namespace mk::k3
