// Mutated model files: whatever the bytes, opening gives an error or a file whose every blob can be
// read. FuzzOneModel has the shape of a libFuzzer target; the test drives it with a seeded corpus.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/base/unique_fd.h"
#include "engine/format/mkim_file.h"
#include "raw_model.h"

namespace mk {
namespace {

// A file in memory that takes new content quickly.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {}
  std::string Fill(const uint8_t* data, size_t size) const {
    EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(size)), 0);
    EXPECT_EQ(::pwrite(fd_.get(), data, size, 0), static_cast<ssize_t>(size));
    return "/proc/self/fd/" + std::to_string(fd_.get());
  }

 private:
  UniqueFd fd_;
};

// Opens the bytes as a model and, when that succeeds, uses everything the file offers. Returns
// whether it opened.
bool FuzzOneModel(const uint8_t* data, size_t size, const OpenOptions& options) {
  static const MemoryFile memory;
  const auto file = MkimFile::Open(memory.Fill(data, size), options);
  if (!file) {
    EXPECT_FALSE(file.error().message.empty());
    EXPECT_NE(file.error().code, ErrorCode::kInternal);
    return false;
  }
  for (const TensorEntry& entry : (*file)->tensors()) {
    EXPECT_LE(entry.offset + entry.size, size);
    std::vector<std::byte> blob(entry.size);
    EXPECT_TRUE((*file)->ReadBlob(entry, blob).has_value());
    EXPECT_EQ((*file)->FindTensor(entry.name), &entry);
  }
  EXPECT_TRUE((*file)->Fingerprint().has_value());
  const MkimConfig& config = (*file)->config();
  (*file)->Expert(config.n_layers, config.n_experts, ExpertPart::kUp);
  return true;
}

void Mutate(std::mt19937_64& random, size_t header_bytes, std::string& bytes) {
  const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
  const size_t edits = 1 + below(3);
  for (size_t i = 0; i < edits && bytes.size() > 16; ++i) {
    // Mostly in the header, where the structure is.
    const size_t range = below(8) == 0 ? bytes.size() : std::min(header_bytes, bytes.size());
    const size_t at = below(range);
    switch (below(7)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:
        bytes[at] = static_cast<char>(below(2) == 0 ? 0xff : 0);
        break;
      case 3:
        bytes.erase(at, 1 + below(8));
        break;
      case 4:
        bytes.insert(at, 1 + below(8), static_cast<char>(random()));
        break;
      case 5:
        bytes.resize(at);
        break;
      default:
        bytes.replace(at, 8, bytes.substr(below(range), 8));
        break;
    }
  }
}

size_t HeaderBytes(const test::RawModel& model) {
  size_t bytes = 16 + model.config.size();
  for (const auto& t : model.tensors) bytes += 20 + t.name.size() + 4 * t.dims.size();
  return bytes;
}

TEST(Fuzz, MutatedModelsNeverBreakTheReader) {
  const test::RawModel model = test::SmallK3();
  const std::string seed = model.Assemble();
  const size_t header = HeaderBytes(model);
  std::mt19937_64 random(20240607);
  OpenOptions container;
  container.checks = OpenOptions::Checks::kContainer;
  size_t opened = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = seed;
    Mutate(random, header, bytes);
    const OpenOptions options = i % 2 == 0 ? OpenOptions() : container;
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    opened += FuzzOneModel(data, bytes.size(), options) ? 1 : 0;
    ASSERT_FALSE(HasFailure()) << "mutation " << i;
  }
  // Some mutations hit blobs or free text only; most must be caught.
  EXPECT_GT(opened, 100u);
  EXPECT_LT(opened, 14000u);
}

TEST(Fuzz, MutatedTinyContainers) {
  test::RawModel model;
  model.config = "{\"hidden\":2,\"n_layers\":1}";
  model.tensors.push_back({"a", 0, {2}, std::string(8, 'a'), {}, {}, {}, {}, 4});
  model.tensors.push_back({"b", 1, {1, 32}, std::string(17, 'b'), {}, {}, {}, {}, 1});
  model.tensors.push_back({"c", 2, {1, 1, 1, 3}, std::string(12, 'c'), {}, {}, {}, {}, 4});
  const std::string seed = model.Assemble();
  std::mt19937_64 random(7);
  OpenOptions container;
  container.checks = OpenOptions::Checks::kContainer;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = seed;
    Mutate(random, HeaderBytes(model), bytes);
    FuzzOneModel(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), container);
    ASSERT_FALSE(HasFailure()) << "mutation " << i;
  }
}

}  // namespace
}  // namespace mk
