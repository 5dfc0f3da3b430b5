#include "engine/pack/mkmem1_state.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/atomic_file.h"
#include "engine/pack/mkmem1.h"

namespace mk {
namespace {

constexpr uint8_t kKda = 0;
constexpr uint8_t kMla = 1;

// What the header of a model's packs says.
PackInfo::Shape ShapeOf(const Model& model, std::span<const StateSection> sections) {
  PackInfo::Shape shape;
  shape.layers = static_cast<uint32_t>(model.info().layers);
  shape.hidden = static_cast<uint32_t>(model.info().hidden);
  shape.vocab = static_cast<uint32_t>(model.info().vocab);
  shape.kinds.assign(model.info().layers, kMla);
  for (const StateSection& section : sections) {
    if (section.array != StateArray::kKdaMatrix) continue;
    shape.kinds[section.layer] = kKda;
    shape.kda_heads = section.dims[0];
    shape.kda_dim = section.dims[1];
  }
  return shape;
}

// Windows of q, k and v are vectors of their own.
size_t VectorsOf(const StateSection& section) {
  return section.array == StateArray::kKdaConv ? section.dims[0] : 1;
}

class Writer {
 public:
  explicit Writer(AtomicFile& file) : file_(file) {}

  Status Put(std::span<const std::byte> bytes) {
    Status written = file_.WriteAt(at_, bytes);
    at_ += bytes.size();
    return written;
  }
  Status PutVector(std::span<const std::byte> floats) {
    const auto count = static_cast<uint32_t>(floats.size() / sizeof(float));
    if (Status written = Put(std::as_bytes(std::span(&count, 1))); !written) return written;
    return Put(floats);
  }
  // Tag and vectors; the first array of a layer brings its tag.
  Status PutArray(const StateSection& section, std::span<const std::byte> bytes) {
    if (section.array == StateArray::kKdaConv || section.array == StateArray::kExpandedKeys) {
      const uint8_t tag = section.array == StateArray::kKdaConv ? kKda : kMla;
      if (Status written = Put(std::as_bytes(std::span(&tag, 1))); !written) return written;
    }
    const size_t vectors = VectorsOf(section);
    for (size_t v = 0; v < vectors; ++v) {
      const size_t size = bytes.size() / vectors;
      if (Status written = PutVector(bytes.subspan(v * size, size)); !written) return written;
    }
    return {};
  }

 private:
  AtomicFile& file_;
  uint64_t at_ = 0;
};

}  // namespace

Result<PackInfo> SaveMkmem1(const std::string& path, const Model& model, const StateKeeper& keeper,
                            const Sequence& sequence, const StateKey& key,
                            std::span<const float> logits) {
  if (model.info().architecture != "k3") {
    return Fail(ErrorCode::kUnsupported,
                "MKMEM001 holds states of k3 models only, not of " + model.info().architecture,
                "save in the default format");
  }
  StateKey form = key;
  form.options.expanded_kv = true;
  Result<std::vector<StateSection>> sections = keeper.Sections(form);
  if (!sections) return Fail(sections.error());
  for (const StateSection& section : *sections) {
    if (section.elements() <= std::numeric_limits<uint32_t>::max()) continue;
    return Fail(ErrorCode::kUnsupported,
                "MKMEM001 cannot count the rows of " + std::to_string(key.length) + " tokens",
                "save in the default format");
  }
  Result<AtomicFile> file = AtomicFile::Create(path, 0600);
  if (!file) return Fail(file.error());
  Writer writer(*file);
  const std::string header = Mkmem1Header(ShapeOf(model, *sections));
  if (Status put = writer.Put(std::as_bytes(std::span(header))); !put) return Fail(put.error());
  Status saved = keeper.Save(sequence, form,
                             [&](const StateSection& section, std::span<const std::byte> bytes) {
                               return writer.PutArray(section, bytes);
                             });
  if (!saved) return Fail(saved.error());
  if (Status put = writer.PutVector(std::as_bytes(logits)); !put) return Fail(put.error());
  if (Status done = file->Commit(); !done) return Fail(done.error());
  Result<PackReader> pack = PackReader::Open(path);
  if (!pack) return Fail(pack.error());
  return pack->info();
}

Result<size_t> LengthOfMkmem1(const PackReader& pack, const Model& model, const StateKeeper& keeper,
                              const StateKey& key) {
  // Of one token, so that the sizes are the widths of rows.
  StateKey one = key;
  one.length = 1;
  one.rewindable = 0;
  Result<std::vector<StateSection>> sections = keeper.Sections(one);
  if (!sections) return Fail(sections.error());
  const PackInfo& info = pack.info();
  const Error other{ErrorCode::kIncompatible,
                    pack.path() + " was saved with a model of other sizes",
                    "load the model that it was saved with"};
  if (info.shape != ShapeOf(model, *sections)) return Fail(other);
  size_t next = 0;
  std::optional<size_t> length;
  for (const StateSection& section : *sections) {
    const size_t vectors = VectorsOf(section);
    for (size_t v = 0; v < vectors; ++v, ++next) {
      const size_t count = info.sections[next].dims[0];
      const size_t width = section.elements() / vectors;
      const bool rows = section.array == StateArray::kExpandedKeys ||
                        section.array == StateArray::kExpandedValues;
      if (!rows && count != width) return Fail(other);
      if (!rows) continue;
      if (count % width != 0) return Fail(other);
      if (!length) length = count / width;
      if (*length == count / width) continue;
      return Fail(DamagedPack(pack.path(), "has layers of different lengths"));
    }
  }
  return length.value_or(0);
}

Result<std::unique_ptr<Sequence>> RestoreMkmem1(const PackReader& pack, const StateKeeper& keeper,
                                                const StateKey& key) {
  size_t next = 0;
  return keeper.Restore(key, [&](const StateSection& section, std::span<std::byte> out) -> Status {
    const size_t vectors = VectorsOf(section);
    const size_t size = out.size() / vectors;
    for (size_t v = 0; v < vectors; ++v) {
      const PackSection& vector = pack.info().sections[next++];
      if (Status read = pack.Read(vector, out.subspan(v * size, size)); !read) return read;
    }
    return {};
  });
}

}  // namespace mk
