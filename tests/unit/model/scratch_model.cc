#include "tests/unit/model/scratch_model.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/format/mkim_file.h"

namespace mk::test {

ScratchModel::ScratchModel(const std::string& source) {
  std::string name = (std::filesystem::temp_directory_path() / "mk-model-XXXXXX").string();
  const int fd = ::mkstemp(name.data());
  if (fd < 0) std::abort();
  ::close(fd);
  path_ = name;
  std::filesystem::copy_file(source, path_, std::filesystem::copy_options::overwrite_existing);
}

ScratchModel::~ScratchModel() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void ScratchModel::Patch(const std::string& tensor, uint64_t first,
                         std::span<const uint8_t> bytes) const {
  OpenOptions options;
  options.checks = OpenOptions::Checks::kContainer;
  const auto file = MkimFile::Open(path_, options);
  const TensorEntry* entry = file ? (*file)->FindTensor(tensor) : nullptr;
  if (entry == nullptr || first + bytes.size() > entry->size) {
    std::fprintf(stderr, "cannot patch %s\n", tensor.c_str());
    std::abort();
  }
  std::fstream out(path_, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(entry->offset + first));
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

void ScratchModel::PatchFloat(const std::string& tensor, uint64_t element, float value) const {
  uint8_t bytes[sizeof(float)];
  std::memcpy(bytes, &value, sizeof(value));
  Patch(tensor, element * sizeof(float), bytes);
}

}  // namespace mk::test
