#include "engine/stream/hot_set.h"

#include <filesystem>
#include <span>
#include <string_view>
#include <unordered_set>

#include "engine/base/atomic_file.h"
#include "engine/base/file.h"
#include "engine/base/private_folder.h"
#include "engine/format/digest.h"

namespace mk {
namespace {

constexpr std::string_view kMagic = "MKHOT001";
constexpr uint64_t kMostBytes = uint64_t{64} << 20;
constexpr uint32_t kLongestFingerprint = 256;

template <typename T>
void Put(std::string& bytes, T value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    bytes.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff));
  }
}

// Takes values from the front; what is not there reads as zero and is remembered.
class Taker {
 public:
  explicit Taker(std::string_view bytes) : bytes_(bytes) {}

  uint32_t U32() { return static_cast<uint32_t>(Integer(4)); }
  uint64_t U64() { return Integer(8); }
  std::string_view Bytes(size_t count) {
    if (count > bytes_.size()) {
      short_ = true;
      return {};
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  size_t left() const { return bytes_.size(); }
  bool whole() const { return !short_; }

 private:
  uint64_t Integer(size_t count) {
    const std::string_view taken = Bytes(count);
    uint64_t value = 0;
    for (size_t i = taken.size(); i > 0; --i) {
      value = value << 8 | static_cast<unsigned char>(taken[i - 1]);
    }
    return value;
  }

  std::string_view bytes_;
  bool short_ = false;
};

Error Damaged(const std::string& path) {
  return {ErrorCode::kCorrupt, path + ": not a list of experts, or a damaged one",
          "remove it; the model makes a new one when it is unloaded"};
}

}  // namespace

std::string HotSetPath(const std::string& folder, const std::string& fingerprint) {
  return folder + "/" + fingerprint + ".hot";
}

Result<HotSet> ReadHotSet(const std::string& path) {
  Result<std::string> text = ReadWholeFile(path, kMostBytes);
  if (!text) return Fail(text.error());
  const std::string_view all = *text;
  if (all.size() < kMagic.size() + 8 || !all.starts_with(kMagic)) return Fail(Damaged(path));
  const std::string_view content = all.substr(0, all.size() - 8);
  Taker end(all.substr(content.size()));
  if (end.U64() != Xxh3Of(std::as_bytes(std::span(content)))) return Fail(Damaged(path));
  Taker taker(content.substr(kMagic.size()));
  HotSet set;
  const uint32_t length = taker.U32();
  if (length > kLongestFingerprint) return Fail(Damaged(path));
  set.fingerprint = taker.Bytes(length);
  set.layers = taker.U32();
  set.experts = taker.U32();
  const uint32_t count = taker.U32();
  if (!taker.whole() || taker.left() != uint64_t{count} * 4) return Fail(Damaged(path));
  std::unordered_set<ExpertKey> seen;
  for (uint32_t i = 0; i < count; ++i) {
    const ExpertKey key = taker.U32();
    if (key >= uint64_t{set.layers} * set.experts || !seen.insert(key).second) {
      return Fail(Damaged(path));
    }
    set.keys.push_back(key);
  }
  return set;
}

Status WriteHotSet(const std::string& path, const HotSet& set) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (Status made = MakePrivateFolder(folder); !made) return made;
  std::string bytes(kMagic);
  Put(bytes, static_cast<uint32_t>(set.fingerprint.size()));
  bytes += set.fingerprint;
  Put(bytes, set.layers);
  Put(bytes, set.experts);
  Put(bytes, static_cast<uint32_t>(set.keys.size()));
  for (const ExpertKey key : set.keys) Put(bytes, key);
  Put(bytes, Xxh3Of(std::as_bytes(std::span(bytes))));
  return WriteFileAtomically(path, bytes, 0600);
}

}  // namespace mk
